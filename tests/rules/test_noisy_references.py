"""Networks that a step asks and does not train: in training mode by mistake, or on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]


def network(*noisy: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), *noisy, nn.ReLU(), nn.Linear(12, 4))


def codes(
    other: nn.Module,
    *,
    into: nn.Module | None = None,
    moves: Callable[[nn.Module, nn.Module], None] = lambda other, model: None,
) -> set[str]:
    """Of a step that takes the answers of `other` as targets, or as inputs of `into`."""
    torch.manual_seed(0)
    x = torch.randn(10, 16, 6)
    model = network() if into is None else into

    def train_step(model: nn.Module, batch: torch.Tensor, optimizer, scaler=None):  # type: ignore[no-untyped-def]
        optimizer.zero_grad()
        with torch.no_grad():
            answer = other(batch)
        labels = batch[:, :4].argmax(1)
        if into is None:
            scores = model(batch)
            loss = F.cross_entropy(scores, labels) + F.mse_loss(scores, answer)
        else:
            loss = F.cross_entropy(model(answer), labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            moves(other, model)
        return loss

    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        train_step=train_step,
        data=list(x),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


@pytest.mark.parametrize("layer", [nn.Dropout(0.2), nn.BatchNorm1d(12)], ids=["dropout", "norm"])
def test_a_teacher_in_training_mode(layer: nn.Module) -> None:
    assert "ND648" in codes(network(layer))
    assert "ND648" not in codes(network(layer).eval())


def test_a_network_without_such_layers_has_no_mode() -> None:
    assert "ND648" not in codes(network())


def averaged(other: nn.Module, model: nn.Module) -> None:
    for slow, fast in zip(other.parameters(), model.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.1)


def test_a_moving_average_may_drop() -> None:
    assert "ND648" not in codes(network(nn.Dropout(0.2)), moves=averaged)


def test_a_frozen_encoder_is_a_part_of_the_model() -> None:
    assert "ND648" not in codes(network(nn.Dropout(0.2)), into=nn.Linear(4, 4))


SCRIPT = """
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
online = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 3))
average = copy.deepcopy(online)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-3)
for step in range(30):
    rows = torch.randint(0, 64, (16,))
    with torch.no_grad():
        wanted = average(x[rows])
    scores = online(x[rows])
    loss = F.cross_entropy(scores, y[rows]) + 0.1 * F.mse_loss(scores, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    MOVES
"""
MOVE = """for own, other in zip(online.parameters(), average.parameters()):
        other.data.copy_(0.1 * own.data + 0.9 * other.data)"""

REPLACE = """for own, other in zip(online.parameters(), average.parameters()):
        other.data = 0.1 * own.data + 0.9 * other.data"""
NOW_AND_THEN = "if step == 20: average.load_state_dict(online.state_dict())"


@pytest.mark.parametrize(
    ("moves", "found"),
    [(MOVE, set()), (REPLACE, set()), (NOW_AND_THEN, set()), ("pass", {"ND648"})],
    ids=["in place", "new data", "once", "never"],
)
def test_a_script_moves_its_average_behind_the_optimizer(
    moves: str, found: set[str], tmp_path: Path
) -> None:
    """The weights are rewound when the step is over: whether it moved them is asked before."""
    (tmp_path / "train.py").write_text(SCRIPT.replace("MOVES", moves))
    assert {finding.code for finding in watched(tmp_path / "train.py").findings} == found


class Added(nn.Module):
    """A low-rank layer beside one that stays, as LoRA has them."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(2, 6) / 4)
        self.up = nn.Parameter(torch.randn(4, 2) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.down.T @ self.up.T


def test_what_transposed_parameters_read_is_a_part_of_the_model() -> None:
    noisy = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2))
    assert "ND648" not in codes(noisy, into=Added())
