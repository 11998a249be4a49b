"""ND681: a loss that reads the same few samples of each batch, by their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanodoc import Recipe
from tests.helpers import diagnose, line_of

CODE = "ND681"
ROWS = 16
Loss = Callable[[nn.ModuleDict, Tensor, Tensor], Tensor]


def found(loss: Loss, *, same: bool = False, norm: bool = False) -> Mapping[str, Any]:
    """The finding of a training whose batches have 16 samples, by its code."""
    torch.manual_seed(0)
    first = [nn.Linear(4, 24), *([nn.BatchNorm1d(24)] if norm else []), nn.ReLU()]
    model = nn.ModuleDict(
        {
            "body": nn.Sequential(*first),
            "head": nn.Linear(24, 3),
            "other": nn.Linear(24, 2),
            "memory": nn.RNN(4, 24),
        }
    )
    x = torch.randn(30, ROWS, 4)
    x = x[:1].expand(30, -1, -1).contiguous() if same else x
    y = x[:, :, :3].argmax(2)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, batch: loss(model, *batch),
        data=list(zip(x, y, strict=True)),
    )
    return {finding.code: finding for finding in diagnose(recipe, 30)}


def scores(model: nn.ModuleDict, x: Tensor) -> Tensor:
    given: Tensor = model["head"](model["body"](x))
    return given


def first_only(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(model, x)[:1], y[:1])


def taken_for_a_tuple(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(model, x)[0], y[0])


def one_of_the_losses(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(model, x), y, reduction="none")[3]


def second_half(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(model, x).narrow(0, 8, 8), y[8:])


@pytest.mark.parametrize("norm", [False, True], ids=["", "batch norm"])
@pytest.mark.parametrize(
    ("loss", "read"),
    [(first_only, 1), (taken_for_a_tuple, 1), (one_of_the_losses, 1), (second_half, 8)],
)
def test_samples_that_nothing_reads(loss: Loss, read: int, norm: bool) -> None:
    told = found(loss, norm=norm)
    if norm and read > 1:  # to normalise by more samples than are learnt from may be meant
        assert CODE not in told
        return
    finding = told[CODE]
    assert finding.severity == "warning"
    assert finding.title == f"the loss reads {read} of {ROWS} samples of each batch"
    location = finding.culprit.location
    assert location.line == line_of(__file__, location.code)


def whole(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores(model, x), y)


def hardest(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    return (
        F.cross_entropy(scores(model, x), y, reduction="none").sort(descending=True)[0][:4].mean()
    )


def confident(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    given = scores(model, x)
    return F.cross_entropy(given[x[:, 0] > 0.5], y[x[:, 0] > 0.5])


def two_domains(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    """Labels of the first half only, and all samples told apart by their half."""
    features = model["body"](x)
    domain = torch.arange(ROWS) // (ROWS // 2)
    told = F.cross_entropy(model["other"](features), domain)
    return F.cross_entropy(model["head"](features)[: ROWS // 2], y[: ROWS // 2]) + told


def half_labelled(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    """Nothing is sure enough yet to be learnt from without a label."""
    given = scores(model, x)
    own = given[ROWS // 2 :].softmax(1).detach()
    sure = (own.max(1)[0] > 2.0).float()
    unlabelled = F.cross_entropy(given[ROWS // 2 :], own.argmax(1), reduction="none")
    return F.cross_entropy(given[: ROWS // 2], y[: ROWS // 2]) + (sure * unlabelled).mean()


def last_of_a_sequence(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    """The rows are the steps of one sequence."""
    outputs, _ = model["memory"](x[:, None])
    return F.cross_entropy(model["head"](outputs[-1]), y[-1:])


def seeds_and_neighbours(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    """The first rows learn from the others, which are their neighbours."""
    near = x[torch.arange(ROWS).flip(0)]
    given = model["head"](model["body"](x) + model["body"](near).detach())
    return F.cross_entropy(given[:4], y[:4])


def bootstrapped(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
    """The values of the later half are the targets of the first one."""
    values = scores(model, x)
    targets = torch.tensor(values.detach().tolist()[ROWS // 2 :])
    return F.mse_loss(values[: ROWS // 2], x[: ROWS // 2, :3] + 0.1 * targets)


@pytest.mark.parametrize(
    "loss",
    [
        whole,
        hardest,
        confident,
        two_domains,
        half_labelled,
        last_of_a_sequence,
        seeds_and_neighbours,
        bootstrapped,
    ],
)
def test_samples_that_are_read_or_chosen(loss: Loss) -> None:
    assert CODE not in found(loss)


def test_nodes_of_one_graph() -> None:
    """Each step has the same samples, of which some are labelled."""

    def with_dropout(model: nn.ModuleDict, x: Tensor, y: Tensor) -> Tensor:
        return first_only(model, F.dropout(x, 0.2), y)

    assert CODE not in found(first_only, same=True)
    assert CODE not in found(with_dropout, same=True)
