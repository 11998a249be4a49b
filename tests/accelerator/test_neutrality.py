"""Do no harm on a device: parameters, gradients, buffers, optimizer state and every device's random
state are bitwise what they would have been."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.loop.engine import Engine
from nanodoc.tensors.modules import move_module
from nanodoc.watchers.requested_steps import LookOptions
from tests.accelerator.device import FIRST, SECOND
from tests.accelerator.steps import loss_of, own_step, scaled_step
from tests.loop.models import MODELS

STEPS = 12


class Spread(nn.Module):
    """On two devices, with random numbers drawn on both."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 16).to(FIRST), nn.Linear(16, 20).to(SECOND)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.dropout(torch.relu(self.first(x.to(FIRST))), 0.3)
        return F.dropout(self.second(h.to(SECOND)), 0.1)


def spread() -> Recipe:
    model = Spread()
    data = [(torch.randn(6, 5), torch.randint(0, 20, (6,))) for _ in range(5)]
    return Recipe(
        model=model,
        loss_fn=loss_of,
        data=data,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    )


KINDS: dict[str, Callable[[], Recipe]] = {**MODELS, "spread": spread}


def made(kind: str, step: Any) -> Recipe:
    """The recipe with its model on the device, and an optimizer made before it went there."""
    recipe = KINDS[kind]()
    scaler = torch.amp.GradScaler("sim", init_scale=2.0**20) if step is scaled_step else None
    return replace(recipe, loss_fn=loss_of, train_step=step, scaler=scaler)


def bare(recipe: Recipe) -> None:
    move_module(recipe.model, FIRST, recipe.optimizers)
    batches = list(recipe.data)
    for number in range(STEPS):
        batch = tuple(tensor.to(FIRST) for tensor in batches[number % len(batches)])
        (recipe.train_step or own_step)(recipe.model, batch, recipe.optimizer, recipe.scaler)


def state(recipe: Recipe) -> dict[str, Any]:
    found: dict[str, Any] = {f"value {k}": v for k, v in recipe.model.state_dict().items()}
    found |= {f"grad {k}": p.grad for k, p in recipe.model.named_parameters()}
    for i, slots in enumerate(recipe.optimizers[0].state.values()):
        found |= {f"optimizer {i} {k}": v for k, v in slots.items()}
    found |= {f"random {d}": torch.get_device_module(d).get_rng_state(d) for d in (FIRST, SECOND)}
    found |= {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "calls": getattr(recipe.model, "calls", None),
    }
    if recipe.scaler is not None:
        found["scale"] = recipe.scaler.get_scale()
    return copy.deepcopy(
        {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in found.items()}
    )


def same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize(
    "step", [None, own_step, scaled_step], ids=["driven", "observed", "scaled"]
)
@pytest.mark.parametrize(
    "looks",
    [LookOptions(), LookOptions(steps=(0, 3)), LookOptions(steps=(3,), frames=True)],
    ids=["plain", "traced", "frames"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_watched_training_is_bitwise_the_same(kind: str, step: Any, looks: LookOptions) -> None:
    results = []
    for watched in (False, True):
        recipe = made(kind, step)
        torch.manual_seed(1), random.seed(1)
        if watched:
            engine = Engine(recipe, FIRST, None, steps=STEPS, looks=looks, sample_every=5)
            with engine.watching():
                for number in range(STEPS):
                    assert engine._step(number) is None
        else:
            bare(recipe)
        results.append(state(recipe))
    differing = [key for key in results[0] if not same(results[0][key], results[1][key])]
    assert differing == []
    assert results[0].keys() == results[1].keys()


def test_the_run_ends_as_it_was(tmp_path: Any) -> None:
    """What is looked at when the run is over, replays and experiments, leaves every device's state
    alone."""
    results = []
    for watched in (False, True):
        recipe = made("spread", None)
        torch.manual_seed(1), random.seed(1)
        if watched:
            Engine(recipe, FIRST, None, steps=STEPS, looks=LookOptions(frames=True)).run()
        else:
            bare(recipe)
        results.append(state(recipe))
    assert [key for key in results[0] if not same(results[0][key], results[1][key])] == []


def test_an_optimizer_made_before_the_model_moved_trains_it() -> None:
    """`Module.to` replaces parameters on such a device; here they are found again."""
    recipe = made("lstm", None)
    before = {id(p) for p in recipe.model.parameters()}
    move_module(recipe.model, FIRST, recipe.optimizers)
    held = {id(p) for group in recipe.optimizers[0].param_groups for p in group["params"]}
    assert held == {id(p) for p in recipe.model.parameters()} == before
