"""Frames and probes meet tensors without memory of their own, and modules that end otherwise: the
user's run must not feel it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import library, nn
from torch.utils.checkpoint import checkpoint

import nanodoc
from nanodoc import Recipe
from nanodoc.watchers.requested_steps import LookOptions
from tests.helpers import run_engine


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = (
            nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16)),
            nn.Linear(16, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))  # type: ignore[no-any-return]


class Nested(nn.Module):
    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        self.linear, self.layout = nn.Linear(6, 1), layout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ragged = torch.nested.nested_tensor([x[:3], x[3:]], layout=self.layout)
        nanodoc.probe(ragged, "ragged")
        self.inner(ragged)
        return self.linear(x)  # type: ignore[no-any-return]

    def inner(self, ragged: torch.Tensor) -> None:
        self.passed = nn.Identity()(ragged)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda row: nanodoc.probe(self.linear(row), "a row"))(x)  # type: ignore[no-any-return]


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        class Label:
            def __str__(self) -> str:
                raise ValueError("no label")

        nanodoc.probe(torch.ones(2, device="meta"), "meta")
        nanodoc.probe(x, Label())  # type: ignore[arg-type]
        nanodoc.probe(None, "nothing")
        nanodoc.probe(torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), "quantized")
        return self.linear(x)  # type: ignore[no-any-return]


def recipe(model: nn.Module) -> Recipe:
    torch.manual_seed(0)
    data = [(torch.randn(8, 6), torch.randn(8, 1))]
    return Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]).float(), b[1]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )


@pytest.mark.filterwarnings(
    "ignore:.*nested tensors is in prototype.*:UserWarning",
    "ignore:.*torch.quantize_per_tensor.*:UserWarning",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "model",
    [Checkpointed, lambda: Nested(torch.strided), lambda: Nested(torch.jagged), Mapped, Odd],
)
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_the_run_goes_on(model: Any, dtype: torch.dtype | None) -> None:
    looks = LookOptions(frames=True, steps=(0, 1, 2))
    outcome = run_engine(recipe(model()), 4, amp_dtype=dtype, looks=looks)
    assert outcome.evidence.failure is None
    assert outcome.steps_run == 4
    assert all(table.frames for table in outcome.frames)


def test_an_op_of_the_users_own_runs_once() -> None:
    calls: list[int] = []

    @library.custom_op("house::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float16
        calls.append(1)
        return x * 2

    doubled.register_autograd(lambda ctx, grad: grad * 2)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return doubled(self.linear(x).relu())

    counts: list[int] = []
    run_engine(
        recipe(Own()),
        3,
        amp_dtype=torch.float16,
        looks=LookOptions(frames=True, steps=(0, 1, 2)),
        progress=lambda step, loss: counts.append(len(calls)),
    )
    assert counts == [1, 2, 3]


def test_lbfgs_state_is_put_back() -> None:
    from nanodoc.replay.optimizers import copy_optimizer, restore_optimizer

    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).pow(2).mean()
        loss.backward()
        return loss  # type: ignore[no-any-return]

    optimizer.step(closure)
    kept = copy_optimizer(optimizer)
    state = next(iter(optimizer.state.values()))
    before = [direction.clone() for direction in state["old_dirs"]]
    optimizer.step(closure)
    restore_optimizer(optimizer, kept)
    after = next(iter(optimizer.state.values()))["old_dirs"]
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
