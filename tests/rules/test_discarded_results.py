"""Results that are thrown away, and statements that only look like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


def found(use: Callable[[Tensor], Tensor]) -> list[Finding]:
    """Of a step that passes its inputs through `use`."""
    torch.manual_seed(0)
    x = torch.randn(12, 16, 6)
    model = nn.Linear(6, 4)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, b: F.cross_entropy(model(use(b.clone())), b[:, :4].argmax(1)),
        data=list(x),
    )
    return [finding for finding in diagnose(recipe, 12) if finding.code == "ND646"]


def masks(x: Tensor) -> Tensor:
    x.masked_fill(x > 1, 0.0)  # thrown away
    return x


def masks_over_lines(x: Tensor) -> Tensor:
    x.masked_fill(  # thrown away
        x > 1, 0.0
    )
    return x


def clamps_a_copy(x: Tensor) -> Tensor:
    x[x > 1].clamp_(max=1.0)  # thrown away
    return x


def scales_a_copy(x: Tensor) -> Tensor:
    x.mul(0.5).add_(1.0)  # thrown away
    return x


def rebinds(x: Tensor) -> Tensor:
    for row in x:
        row = row * 2  # thrown away
    for row in x:
        row.add_(1.0)
    return x


@pytest.mark.parametrize(
    "use",
    [masks, masks_over_lines, clamps_a_copy, scales_a_copy, rebinds],
    ids=lambda f: f.__name__,
)
def test_the_line_is_named(use: Callable[[Tensor], Tensor]) -> None:
    (finding,) = found(use)
    location = finding.culprit.location
    assert location is not None
    assert "# thrown away" in location.code or location.code.startswith("x.masked_fill(")
    assert location.function == use.__name__


def writes_in_place(x: Tensor) -> Tensor:
    x.masked_fill_(x > 1, 0.0)
    x[:, 0].mul_(2)
    x.view(-1).add_(0.5)
    x.float().add_(0.5)
    x.detach().mul_(1.5)
    F.relu(x, inplace=True)
    torch.add(x, 1, out=x)
    return x


def waits(x: Tensor) -> Tensor:
    x.sum()
    return x


def reads_behind(x: Tensor) -> Tensor:
    for row in x:
        row = row * 2
    return x + row


def reads_within(x: Tensor) -> Tensor:
    rows = []
    for row in x:
        row = row * 2
        rows.append(row)
    return torch.stack(rows)


def calls_others(x: Tensor) -> Tensor:
    nn.functional.normalize(x, out=x)
    return writes_in_place(x)


@pytest.mark.parametrize(
    "use",
    [writes_in_place, waits, reads_behind, reads_within, calls_others],
    ids=lambda f: f.__name__,
)
def test_what_only_looks_so(use: Callable[[Tensor], Tensor]) -> None:
    assert found(use) == []
