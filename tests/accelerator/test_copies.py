"""What watching a step costs on a device, counted by the device itself: one copy to the host, and
nothing else that the host waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.loop.engine import Engine
from tests.accelerator.device import FIRST, sim
from tests.accelerator.steps import loss_of, own_step, scaled_step
from tests.loop.models import MODELS


def driven(recipe: Recipe, batch: Any, *, amp: bool) -> None:
    """What nanodoc's own loop does, without nanodoc."""
    (optimizer,), scaler = recipe.optimizers, recipe.scaler
    optimizer.zero_grad()
    with torch.autocast("sim", dtype=torch.float16) if amp else contextlib.nullcontext():
        loss = loss_of(recipe.model, batch)
    if not amp:
        loss.backward()
        optimizer.step()
        return
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def counted(run: Callable[[], Any]) -> sim.Counts:
    before = sim.counts()
    run()
    return sim.counts().since(before)


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_one_copy_a_step(name: str, observed: bool, amp: bool) -> None:
    made = MODELS[name]()
    made.model.to(FIRST)
    batch = tuple(tensor.to(FIRST) for tensor in next(iter(made.data)))
    step = (scaled_step if amp else own_step) if observed else None
    recipe = replace(
        made,
        loss_fn=loss_of,
        data=[batch],
        optimizer=torch.optim.AdamW(made.model.parameters()),
        train_step=step,
        scaler=torch.amp.GradScaler("sim", init_scale=256.0) if amp else None,
    )
    engine = Engine(
        recipe,
        FIRST,
        torch.float16 if amp and not observed else None,
        steps=100,
        checkpoint_every=1000,
        samples=False,
    )
    with engine.amp.calls.installed() if observed else contextlib.nullcontext():
        for number in range(4):
            assert engine._step(number) is None  # the first step is followed, and looked at closely
        watched = [counted(lambda number=number: engine._step(number)) for number in range(4, 8)]
    bare = counted(
        lambda: (
            step(recipe.model, batch, recipe.optimizer, recipe.scaler)
            if step
            else driven(recipe, batch, amp=amp)
        )
    )
    for one in watched:
        assert one.copies_to_host - bare.copies_to_host == 1
        assert one.scalar_reads == bare.scalar_reads
        assert one.synchronisations == bare.synchronisations


class Halves(nn.Module):
    """A model on two devices."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8).to("sim:0"), nn.Linear(8, 3).to("sim:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)).to("sim:1"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("observed", [False, True])
def test_one_copy_a_step_of_a_model_on_two_devices(observed: bool) -> None:
    model = Halves()
    batch = (torch.randn(6, 4, device="sim:0"), torch.randint(0, 3, (6,)).to("sim:1"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recipe = Recipe(
        model=model,
        loss_fn=loss_of,
        train_step=own_step if observed else None,
        data=[batch],
        optimizer=optimizer,
    )
    engine = Engine(recipe, FIRST, None, steps=100, checkpoint_every=1000, samples=False)
    for number in range(4):
        assert engine._step(number) is None
    watched = counted(lambda: engine._step(4))
    bare = counted(lambda: own_step(model, batch, optimizer, None))
    assert watched.copies_to_host - bare.copies_to_host == 1
    assert (watched.scalar_reads, watched.synchronisations) == (
        bare.scalar_reads,
        bare.synchronisations,
    )
    assert {parameter.device.index for parameter in model.parameters()} == {0, 1}


def test_looks_at_sampled_steps_are_counted_apart() -> None:
    """A look now and then reads more, in a few copies, and no more of them with the size of the
    model."""
    made = MODELS["conv"]()
    made.model.to(FIRST)
    batch = tuple(tensor.to(FIRST) for tensor in next(iter(made.data)))
    recipe = replace(made, data=[batch], optimizer=torch.optim.AdamW(made.model.parameters()))
    engine = Engine(recipe, FIRST, None, steps=100, checkpoint_every=1000, sample_every=4)
    for number in range(8):
        assert engine._step(number) is None
    costs = [counted(lambda number=number: engine._step(number)).waits for number in range(8, 16)]
    assert sorted(costs)[:6] == [1] * 6
    assert 1 < max(costs) <= 8
