"""ND680: two layers that one linear map could stand for, where a nonlinear function would help."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanodoc import Recipe, examine
from nanodoc.diagnosis.finding import Finding
from tests.helpers import nanodoc

CODE = "ND680"


class Net(nn.Module):
    """A network of three inputs and two classes, by one way to put two layers together."""

    def __init__(self, forward: Callable[[Net, Tensor], Tensor], hidden: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(3, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.drop = nn.Dropout(0.1)
        self.last = nn.Linear(hidden, 2)
        self.other = nn.Linear(hidden, 2)
        self.way = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def found(
    model: nn.Module, *, straight: bool = False, shape: tuple[int, ...] = (3,)
) -> Finding | None:
    torch.manual_seed(0)
    x = torch.rand(100 * 32, *shape) * 2 - 1
    y = (x.flatten(1)[:, 0] > 0) if straight else (x.flatten(1)[:, :2].norm(dim=1) > 0.8)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=list(zip(x.split(32), y.long().split(32), strict=True)),
    )
    report = examine(recipe, 100)
    return next((one for one in report.findings if one.code == CODE), None)


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: net.last(net.first(x)),
        lambda net, x: net.last(net.drop(net.first(x)).contiguous()),
        lambda net, x: net.last(net.first(x.view(-1, 4, 3)).view(-1, 32)),
    ],
    ids=["at once", "dropout between", "reshaped"],
)
def test_no_activation(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    finding = found(Net(way))
    assert finding is not None
    assert finding.severity == "warning"
    assert "between the linear layers first and last" in finding.title
    (fix,) = finding.fixes
    assert fix.verified
    assert "with relu there the same 100 steps end at loss" in (fix.outcome or "")


def test_two_convolutions() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv1d(1, 16, 3), nn.BatchNorm1d(16), nn.Conv1d(16, 2, 1), nn.Flatten()]
    assert found(nn.Sequential(*layers), shape=(1, 3)) is not None


SCRIPT = """import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(3, 24),
    nn.Linear(24, 2),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(100):
    x = torch.rand(32, 3) * 2 - 1
    loss = F.cross_entropy(model(x), (x[:, :2].norm(dim=1) > 0.8).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_the_line_of_a_layer_in_a_sequential(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    nanodoc("run", "--output", "json=report.json", "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    location = report["findings"][0]["culprit"]["location"]
    assert (report["findings"][0]["code"], location["line"]) == (CODE, 7)


@pytest.mark.parametrize(
    "way",
    [
        lambda net, x: net.last(torch.tanh(net.first(x))),
        lambda net, x: net.last(net.norm(net.first(x))),
        lambda net, x: net.last(net.first(x)) + net.other(net.first(x).relu()),
        lambda net, x: net.last((h := net.first(x)) * torch.sigmoid(h)),
    ],
    ids=["tanh", "layer norm", "other use", "a gate"],
)
def test_something_nonlinear_between(way: Callable[[Net, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    assert found(Net(way)) is None


def test_factors_of_low_rank_are_left_alone() -> None:
    torch.manual_seed(0)
    assert found(Net(lambda net, x: net.last(net.first(x)), hidden=1)) is None


def test_an_operator_without_a_bias_is_left_alone() -> None:
    torch.manual_seed(0)
    model = Net(lambda net, x: net.last(net.first(x)))
    model.first = nn.Linear(3, 32, bias=False)
    assert found(model) is None


def test_a_probe_of_frozen_features_is_left_alone() -> None:
    torch.manual_seed(0)
    frozen = nn.Linear(3, 3).requires_grad_(False)
    assert found(Net(lambda net, x: net.last(net.first(torch.tanh(frozen(x)))))) is None


def test_where_a_linear_map_is_enough() -> None:
    torch.manual_seed(0)
    assert found(Net(lambda net, x: net.last(net.first(x))), straight=True) is None
