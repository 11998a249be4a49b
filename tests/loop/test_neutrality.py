"""Do no harm: with and without nanodoc a training run is bitwise the same, and nothing stays
behind."""

from __future__ import annotations

import copy
import io
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nanodoc import Recipe
from nanodoc.loop.history import History
from nanodoc.watchers.requested_steps import LookOptions
from tests.helpers import run_engine
from tests.loop.models import MODELS

STEPS = 20


def bare_loop(recipe: Recipe, steps: int = STEPS) -> None:
    """What the user's own loop would be."""
    (optimizer,) = recipe.optimizers
    batches = list(recipe.data)
    for step in range(steps):
        batch = batches[step % len(batches)]
        optimizer.zero_grad()
        assert recipe.loss_fn is not None
        recipe.loss_fn(recipe.model, batch).backward()
        optimizer.step()


def train_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = torch.nn.functional.cross_entropy(
        model(batch[0]).flatten(0, -2), batch[1].flatten()
    )
    loss.backward()
    optimizer.step()
    return loss


def everything(recipe: Recipe) -> dict[str, Any]:
    """Parameters, gradients, buffers, optimizer state and random states."""
    model = recipe.model
    state: dict[str, Any] = {f"value {k}": v for k, v in model.state_dict().items()}
    state |= {f"grad {k}": p.grad for k, p in model.named_parameters()}
    for i, optimizer in enumerate(recipe.optimizers):
        for j, slots in enumerate(optimizer.state.values()):
            state |= {f"optimizer {i}.{j}.{k}": v for k, v in slots.items()}
    state["torch"] = torch.get_rng_state()
    state["python"] = random.getstate()
    state["numpy"] = np.random.get_state()[1]
    state["calls"] = getattr(model, "calls", None)
    return copy.deepcopy(state)


def bits(tensor: torch.Tensor) -> bytes:
    """The raw bytes: equal NaNs are equal, 0.0 and -0.0 are not."""
    return tensor.detach().contiguous().numpy().tobytes()


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        same = (
            bits(value) == bits(b[key])
            if isinstance(value, torch.Tensor)
            else np.array_equal(value, b[key])
            if isinstance(value, np.ndarray)
            else value == b[key]
        )
        assert same, key


def seeded(build: Callable[[], Recipe]) -> Recipe:
    random.seed(1)
    np.random.seed(1)
    return build()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["driven", "observed", "traced", "framed", "sampled"])
def test_twenty_steps_are_bitwise_the_same(name: str, how: str, tmp_path: Path) -> None:
    bare = seeded(MODELS[name])
    bare_loop(bare)
    expected = everything(bare)

    watched = seeded(MODELS[name])
    if how == "observed":
        watched = replace(watched, train_step=train_step)
    history = History(tmp_path)
    looks = LookOptions(
        steps=(0, 3, 7) if how in ("traced", "framed") else (),
        folder=tmp_path,
        frames=how == "framed",
    )
    outcome = run_engine(
        watched, STEPS, history=history, looks=looks, sample_every=1 if how == "sampled" else None
    )
    history.close()
    assert outcome.steps_run == STEPS
    assert_same(everything(watched), expected)


@pytest.mark.parametrize("name", MODELS)
# dynamo's own
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_nothing_stays_behind(name: str) -> None:
    recipe = MODELS[name]()
    run_engine(recipe, 2, looks=LookOptions(steps=(1,), frames=True))
    hooks, optimizer_module = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert not optimizer_module._global_optimizer_pre_hooks
    assert not optimizer_module._global_optimizer_post_hooks
    for module in recipe.model.modules():
        assert not module._forward_hooks
        assert not module._backward_hooks
    assert not recipe.optimizers[0]._optimizer_step_pre_hooks
    batch = next(iter(recipe.data))[0]
    recipe.model.eval()
    expected = recipe.model(batch)
    assert torch.equal(copy.deepcopy(recipe.model)(batch), expected)
    assert torch.equal(pickle.loads(pickle.dumps(recipe.model))(batch), expected)
    torch.save(recipe.model.state_dict(), io.BytesIO())
    assert torch.equal(torch.compile(recipe.model, backend="eager")(batch), expected)


def test_skipped_scaler_steps_leave_the_run_as_it_was() -> None:
    """What is run again of the calibration's skips waits for the end of the run and is invisible to
    it."""

    def recipe() -> Recipe:
        return replace(MODELS["gpt"](), scaler=torch.amp.GradScaler("cpu", init_scale=2.0**30))

    bare = recipe()
    (optimizer,), scaler = bare.optimizers, bare.scaler
    batches = list(bare.data)
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            assert bare.loss_fn is not None
            loss = bare.loss_fn(bare.model, batches[step % 5])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    watched = recipe()
    outcome = run_engine(watched, STEPS, amp_dtype=torch.float16)
    assert outcome.skipped > 3
    assert outcome.evidence.trip is None
    assert_same(everything(watched), everything(bare))
    assert watched.scaler.get_scale() == bare.scaler.get_scale()


def amp_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss: torch.Tensor = torch.nn.functional.cross_entropy(
            model(batch[0]).flatten(0, -2), batch[1].flatten()
        )
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    return loss


@pytest.mark.parametrize("name", ["gpt", "conv"])  # torch has no float16 LSTM on the CPU
@pytest.mark.parametrize("looked_at", [False, True])
def test_the_users_own_mixed_precision_step_is_bitwise_the_same(
    name: str, looked_at: bool, tmp_path: Path
) -> None:
    """Scaler, clipping and optimizer calls are watched; some steps are skipped; frames and ops of
    some are looked at."""

    def recipe() -> Recipe:
        return replace(
            seeded(MODELS[name]),
            train_step=amp_step,
            scaler=torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3),
        )

    bare = recipe()
    batches = list(bare.data)
    for step in range(STEPS):
        amp_step(bare.model, batches[step % len(batches)], bare.optimizer, bare.scaler)
    watched = recipe()
    looks = LookOptions(steps=(1, 9), folder=tmp_path, frames=True) if looked_at else LookOptions()
    outcome = run_engine(watched, STEPS, looks=looks)
    assert outcome.steps_run == STEPS
    assert outcome.skipped >= 1
    assert_same(everything(watched), everything(bare))
    assert watched.scaler.state_dict() == bare.scaler.state_dict()
