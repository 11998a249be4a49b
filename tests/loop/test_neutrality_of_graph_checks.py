"""Examining graphs, trying fixes and changing a sample leave the run bitwise as it was, and torch's
classes too."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.recipe.build_watch import BuildWatch
from tests.helpers import run_engine
from tests.loop.test_neutrality import assert_same, everything

STEPS = 8


class Halves(nn.Module):
    """An encoder that is cut off, a counter, dropout, and a number that goes through Python."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)
        self.drop, self.calls, self.scale = nn.Dropout(0.3), 0, 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        with torch.no_grad():
            h = self.encoder(x)
        self.scale = 0.9 * self.scale + 0.1 * h.abs().mean().item()
        return self.head(self.drop(self.norm(h)) / self.scale)  # type: ignore[no-any-return]


def halves() -> Recipe:
    torch.manual_seed(0)
    model = Halves()
    data = [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(STEPS)]
    return Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.01),
    )


def test_a_run_with_a_cut_graph_is_the_same() -> None:
    bare = halves()
    (optimizer,) = bare.optimizers
    for batch in bare.data:
        optimizer.zero_grad()
        assert bare.loss_fn is not None
        bare.loss_fn(bare.model, batch).backward()
        optimizer.step()
    watched = halves()
    outcome = run_engine(watched, STEPS)
    graph = outcome.evidence.graph
    assert graph is not None
    assert graph.verified  # so the step was replayed, with and without the patch
    assert_same(everything(watched), everything(bare))
    assert watched.model.scale == bare.model.scale


class Game(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.critic, self.idle = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(torch.tanh(self.maker(x)))  # type: ignore[no-any-return]


def play(model: Any, batch: Any, optimizers: Any, scaler: Any) -> torch.Tensor:
    """Two optimizers, and an average kept by hand."""
    one, two = optimizers
    two.zero_grad()
    (
        F.softplus(model.critic(model.maker(batch[0]).detach())).mean()
        + F.softplus(-model.critic(batch[0])).mean()
    ).backward()
    two.step()
    one.zero_grad()
    loss = F.softplus(-model(batch[0])).mean()
    loss.backward()
    one.step()
    with torch.no_grad():
        for mine, theirs in zip(model.idle.parameters(), model.maker.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
    return loss


def game() -> Recipe:
    torch.manual_seed(0)
    model = Game()
    optimizers = [
        torch.optim.Adam([*model.maker.parameters(), *model.idle.parameters()], lr=0.01),
        torch.optim.SGD(model.critic.parameters(), lr=0.01, momentum=0.9),
    ]
    return Recipe(
        model=model,
        train_step=play,
        data=[(torch.randn(8, 4),) for _ in range(STEPS)],
        optimizer=optimizers,
    )


def test_a_train_step_with_two_optimizers_is_the_same() -> None:
    bare = game()
    for batch in bare.data:
        play(bare.model, batch, bare.optimizers, None)
    watched = game()
    outcome = run_engine(watched, STEPS)
    assert outcome.evidence.leak is None
    assert "idle.weight" in outcome.evidence.moved_by_hand
    assert_same(everything(watched), everything(bare))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad


def test_torch_is_put_back_as_it_was() -> None:
    places = [
        (torch.Tensor, "requires_grad"),
        (torch.Tensor, "requires_grad_"),
        (torch.Tensor, "backward"),
        (torch.Tensor, "numpy"),
        (nn.Module, "__setattr__"),
        (nn.Module, "__init__"),
        (nn.Module, "register_parameter"),
        (nn.Module, "add_module"),
        (nn.Module, "load_state_dict"),
        (nn.Module, "compile"),
        (torch.optim.Optimizer, "__init__"),
        (torch, "compile"),
        (torch.set_grad_enabled, "__init__"),
        (torch.inference_mode, "__enter__"),
        (Twice, "backward"),
    ]
    before = [vars(owner).get(name) for owner, name in places]
    with BuildWatch():
        recipe = halves()
    loss_fn = recipe.loss_fn
    assert loss_fn is not None
    run_engine(
        Recipe(
            model=recipe.model,
            loss_fn=lambda m, b: Twice.apply(loss_fn(m, b)),
            data=recipe.data,
            optimizer=recipe.optimizer,
        ),
        3,
    )  # type: ignore[no-untyped-call]
    assert [vars(owner).get(name) for owner, name in places] == before
    assert torch.is_grad_enabled()


def test_a_step_that_raises_puts_everything_back_too() -> None:
    def explode(model: Any, batch: Any) -> torch.Tensor:
        raise ValueError("no")

    recipe = halves()
    before = vars(torch.inference_mode)["__enter__"]
    outcome = run_engine(
        Recipe(model=recipe.model, loss_fn=explode, data=recipe.data, optimizer=recipe.optimizer), 2
    )
    assert outcome.evidence.failure is not None
    assert vars(torch.inference_mode)["__enter__"] is before
    assert not torch.nn.modules.module._global_forward_hooks
