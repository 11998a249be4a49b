"""Keeping earlier weights and batches is for experiments only: nothing about it may end a healthy
run, or hold its memory.

Sparse batches, optimizers whose state is no mapping, learning rates of None and groups that are
added during the run crashed; views of large tensors and batches that nanodoc can't look into were
kept by the hundred.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.loop.engine import Engine
from tests.experiments.test_experiments import ready


class Counting(torch.optim.SGD):
    """Keeps a number beside the parameters' states, as some optimizers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.state["calls"] = self.state.get("calls", 0) + 1
        super().step(closure)


class Schedulefree(torch.optim.SGD):
    """Finds its learning rate by itself."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.param_groups[0]["lr"] = 0.01
        super().step(closure)
        self.param_groups[0]["lr"] = None


def made(optimizer: Any = torch.optim.SGD, data: Any = None, loss_fn: Any = None) -> Recipe:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    chosen = optimizer(model.parameters(), lr=0.01)
    if optimizer is Schedulefree:
        chosen.param_groups[0]["lr"] = None
    return Recipe(
        model=model,
        loss_fn=loss_fn or (lambda m, b: m(b).pow(2).mean()),
        data=data if data is not None else [torch.randn(6, 4) for _ in range(4)],
        optimizer=chosen,
    )


def sparse(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch.to_dense()).pow(2).mean()
    return loss


@pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning")
@pytest.mark.parametrize(
    "recipe",
    [
        lambda: made(Counting),
        lambda: made(Schedulefree),
        lambda: made(data=[torch.eye(4).to_sparse()], loss_fn=sparse),
        lambda: made(data=[torch.eye(4).to_sparse_csr()], loss_fn=sparse),
    ],
)
def test_a_healthy_run_stays_one(recipe: Any) -> None:
    outcome = Engine(recipe(), torch.device("cpu"), None, steps=8, checkpoint_every=2).run()
    assert outcome.steps_run == 8
    assert outcome.evidence.failure is None


def test_a_group_that_was_added_since() -> None:
    """A layer is unfrozen at step 3; step 5 fails. Checkpoints of before have one group less."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.01)
    data = [torch.randn(6, 4) for _ in range(6)]
    data[5][2] = float("inf")
    calls = [0]

    def train_step(
        model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        calls[0] += 1
        if len(optimizer.param_groups) == 1 and calls[0] > 3:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.001})
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(model=model, train_step=train_step, data=data, optimizer=optimizer)
    differential, evidence = ready(recipe, checkpoint_every=1)
    pattern = differential.examine(evidence).pattern
    assert pattern is not None
    assert pattern.passes("other-batch") is True
    assert pattern.passes("first-weights") is False
    assert len(optimizer.param_groups) == 2
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]


class Opaque:
    """A batch as graph libraries make them: nanodoc can't look into it."""

    def __init__(self) -> None:
        self.x = torch.randn(6, 4)


def test_memory_that_is_kept_is_counted_whole() -> None:
    run = Engine(
        made(data=[torch.randn(1000, 4)[:6] for _ in range(8)]), torch.device("cpu"), None, steps=8
    )
    run.run()
    assert run.checkpoints.batches.host_bytes == 8 * 1000 * 4 * 4
    whole = torch.randn(1000, 4)
    run = Engine(made(data=list(whole.split(100))), torch.device("cpu"), None, steps=8)
    run.run()
    assert run.checkpoints.batches.host_bytes == 1000 * 4 * 4  # views of one tensor, counted once


def test_what_cannot_be_counted_is_let_go() -> None:
    run = Engine(
        made(data=[Opaque() for _ in range(8)], loss_fn=lambda m, b: m(b.x).pow(2).mean()),
        torch.device("cpu"),
        None,
        steps=8,
    )
    run.run()
    assert len(run.checkpoints.past) == 2


def test_memory_that_numpy_writes_to_is_not_intact() -> None:
    numpy = pytest.importorskip("numpy")
    buffer = numpy.zeros((6, 4), dtype="float32")

    class Reused:
        def __iter__(self) -> Any:
            for number in range(6):
                buffer[:] = numpy.random.default_rng(number).normal(size=(6, 4))
                yield torch.from_numpy(buffer)

    run = Engine(made(data=Reused()), torch.device("cpu"), None, steps=6)
    run.run()
    assert [past.intact for past in run.checkpoints.past] == [False] * 5 + [True]
