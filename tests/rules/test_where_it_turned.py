"""The call that turns a term's sign, betas in each other's place, and axes that a softmax should
run along: each at the line that is to be changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe, examine
from nanodoc.diagnosis.finding import Finding
from tests.helpers import line_of


def first(recipe: Recipe, steps: int) -> Finding:
    return examine(recipe, steps=steps).findings[0]


def line(finding: Finding) -> int | None:
    return finding.culprit.location.line if finding.culprit.location else None


def test_a_penalty_that_is_subtracted() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        out = model(batch)
        penalty = out.square().mean()
        return F.l1_loss(out, batch) - 0.5 * penalty  # turned

    data = list(torch.randn(160, 16, 6))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    found = first(Recipe(model=model, loss_fn=loss_fn, optimizer=optimizer, data=data), 160)
    assert (found.code, line(found)) == ("ND606", line_of(__file__, "# turned"))
    assert "falls without bound" in found.title


@pytest.mark.parametrize("betas", [(0.999, 0.5), (0.9, 0.999)])
def test_betas_in_each_others_place(betas: tuple[float, float]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2, betas=betas)
    weight = torch.randn(8, 1)
    x = torch.randn(150, 32, 8)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return F.mse_loss(model(batch), batch @ weight)

    recipe = Recipe(model=model, loss_fn=loss_fn, optimizer=optimizer, data=list(x))
    told = [one for one in examine(recipe, steps=150).findings if one.code == "ND606"]
    assert bool(told) is (betas[0] > betas[1])
    for finding in told:
        assert "The betas are 0.999 and 0.5" in finding.explanation
        assert (finding.fixes[0].title, finding.fixes[0].verified) == ("betas=(0.5, 0.999)", True)


@pytest.mark.parametrize(("dim", "found"), [(1, True), (-1, False)])
def test_a_softmax_across_the_mask(dim: int, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    hidden = torch.ones(6, 6).triu(1).bool()
    hidden[:, 5] = True  # nobody may attend to the last one

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        x = model(batch)
        scores = (x @ x.transpose(1, 2)).masked_fill(hidden, float("-inf"))
        return (torch.softmax(scores, dim) @ x).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = list(torch.randn(4, 3, 6, 4))
    report = examine(Recipe(model=model, loss_fn=loss_fn, optimizer=optimizer, data=data), steps=4)
    codes = [one.code for one in report.findings]
    assert ("ND205" in codes) is found
    if found:
        assert "Along dim 2 no row is" in report.findings[0].explanation


def test_log_probabilities_over_another_axis() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 5)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        frames, symbols = batch
        said = model(frames).log_softmax(dim=0)  # over the samples
        lengths = torch.full((len(frames),), 9), torch.full((len(frames),), 3)
        return F.ctc_loss(said.transpose(0, 1), symbols, *lengths)

    data = [(torch.randn(6, 9, 4), torch.randint(1, 5, (6, 3))) for _ in range(12)]
    optimizer = torch.optim.Adam(model.parameters())
    found = first(Recipe(model=model, loss_fn=loss_fn, optimizer=optimizer, data=data), 12)
    assert (found.code, line(found)) == ("ND627", line_of(__file__, "# over the samples"))
    assert "did not run over the dimension of the symbols" in found.explanation
