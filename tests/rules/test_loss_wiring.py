"""What is wired to the loss: each silent mistake is named at its line, and what looks like it is
left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, marked

Loss = Callable[[nn.Module, Any], torch.Tensor]


def run(
    loss_fn: Loss, *, outputs: int = 4, model: nn.Module | None = None, steps: int = 6
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, outputs))
    data = [
        (torch.randn(8, 6), torch.randint(0, max(outputs, 2), (8,)), torch.randn(8))
        for _ in range(4)
    ]
    return diagnose(
        Recipe(
            model=model,
            loss_fn=loss_fn,
            optimizer=torch.optim.Adam(model.parameters(), 1e-3),
            data=data,
        ),
        steps,
    )


def serious(findings: tuple[Finding, ...]) -> list[str]:
    return [one.code for one in findings if one.severity != "info"]


def softmax_method(model: nn.Module, batch: Any) -> torch.Tensor:
    probabilities = model(batch[0]).softmax(-1)  # a method
    return F.cross_entropy(probabilities, batch[1])


def softmax_reshaped(model: nn.Module, batch: Any) -> torch.Tensor:
    probabilities = torch.softmax(model(batch[0])[:, None], dim=-1)
    return F.cross_entropy(probabilities.flatten(0, 1).float().contiguous(), batch[1])


def sigmoid_then_ce(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(torch.sigmoid(model(batch[0])), batch[1])


def sigmoid_then_overlap_of_scores(model: nn.Module, batch: Any) -> torch.Tensor:
    given, wanted = torch.sigmoid(model(batch[0])), F.one_hot(batch[1], 4).float()
    shares = F.logsigmoid(given.reshape(-1)).exp()  # as a library's loss of overlap does
    return 1 - 2 * (shares * wanted.reshape(-1)).sum() / (shares.sum() + wanted.sum())


def sigmoid_then_logits(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(
        torch.sigmoid(model(batch[0])), F.one_hot(batch[1], 4).float()
    )


def twice_by_hand(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(F.softmax(model(batch[0]), dim=1), dim=1), batch[1])


def nll_of_probabilities(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.nll_loss(F.softmax(model(batch[0]), dim=1), batch[1])


def kl_of_probabilities(model: nn.Module, batch: Any) -> torch.Tensor:
    target = F.softmax(torch.randn(8, 4), dim=1)
    return F.kl_div(F.softmax(model(batch[0]), dim=1), target, reduction="batchmean")


@pytest.mark.parametrize(
    "loss_fn",
    [
        softmax_method,
        softmax_reshaped,
        sigmoid_then_ce,
        sigmoid_then_logits,
        sigmoid_then_overlap_of_scores,
        twice_by_hand,
        nll_of_probabilities,
        kl_of_probabilities,
    ],
    ids=lambda one: one.__name__,
)
def test_normalised_before_a_loss_that_normalises(loss_fn: Loss) -> None:
    assert serious(run(loss_fn)) == ["ND612"]


def test_the_softmax_is_the_line_and_the_lowest_loss_is_told() -> None:
    first = run(softmax_method)[0]
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "a method")
    # ln(3 + e) − 1
    assert dict(first.evidence)["lowest loss possible"] == pytest.approx(0.7437, abs=1e-3)


def test_nll_of_raw_outputs() -> None:
    assert serious(run(lambda model, batch: F.nll_loss(model(batch[0]), batch[1]))) == ["ND627"]


def log_softmax_then_ce(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(F.log_softmax(model(batch[0]), dim=1), batch[1])


def soft_targets(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), F.softmax(torch.randn(8, 4), dim=1))


def distillation(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        teacher = F.softmax(model(batch[0]) / 2, dim=1)
    return F.kl_div(
        F.log_softmax(model(batch[0]) / 2, dim=1), teacher, reduction="batchmean"
    ) + F.cross_entropy(model(batch[0]), batch[1])


def attention_inside(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(F.softmax(out @ out.T, dim=-1) @ out, batch[1])


def probabilities_scaled(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(10 * F.softmax(model(batch[0]), dim=1).log(), batch[1])


def entropy_bonus(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    p = F.softmax(out, dim=1)
    return F.cross_entropy(out, batch[1]) + 0.01 * (p * torch.log(p + 1e-6)).sum(1).mean()


@pytest.mark.parametrize(
    "loss_fn",
    [
        log_softmax_then_ce,
        soft_targets,
        distillation,
        attention_inside,
        probabilities_scaled,
        entropy_bonus,
    ],
    ids=lambda one: one.__name__,
)
def test_softmax_where_it_belongs(loss_fn: Loss) -> None:
    assert serious(run(loss_fn)) == []


# -- shapes ----------------------------------------------------------------------------------------


def column_minus_row(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[2]).abs().mean()  # (8, 1) − (8,)


def row_minus_column(model: nn.Module, batch: Any) -> torch.Tensor:
    target = batch[2].view(-1, 1)
    return ((model(batch[0]).squeeze(1) - target) ** 2).mean()


def huber(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.huber_loss(model(batch[0]), batch[2])


def weighted(model: nn.Module, batch: Any) -> torch.Tensor:
    each = F.mse_loss(model(batch[0]), batch[2][:, None], reduction="none")
    weights = batch[2].abs()
    return (each * weights).mean()


def parts_of_a_prediction(model: nn.Module, batch: Any) -> torch.Tensor:
    biases = model(batch[0])
    interaction = (biases * batch[0]).sum(dim=1)
    error = 3.5 + biases + interaction - batch[2]
    return error.pow(2).mean()


@pytest.mark.parametrize(
    "loss_fn",
    [column_minus_row, row_minus_column, huber, weighted, parts_of_a_prediction],
    ids=lambda one: one.__name__,
)
@pytest.mark.filterwarnings("ignore:Using a target size.*:UserWarning")
def test_predictions_broadcast_against_targets(loss_fn: Loss) -> None:
    found = run(loss_fn, outputs=1)
    assert serious(found) == ["ND111"]
    assert "8×8" in found[0].explanation


def a_target_of_pairs(model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        wanted = batch[2][:, None]
        wanted = wanted + 0.9 * batch[2]
    return F.mse_loss(model(batch[0]).squeeze(1), wanted)


def a_target_of_all_pairs(model: nn.Module, batch: Any) -> torch.Tensor:
    wanted = batch[2][:, None] - batch[2]  # compared with as many predictions
    made = model(batch[0])
    return F.mse_loss(made - made.squeeze(1)[None, :], wanted)


@pytest.mark.filterwarnings("ignore:Using a target size.*:UserWarning")
def test_a_target_that_broadcasts_to_pairs() -> None:
    found = run(a_target_of_pairs, outputs=1)
    assert serious(found) == ["ND111"]
    assert found[0].title == "add of shapes (8, 1) and (8,) gives 8×8 targets for 8 predictions"
    assert "ND111" not in serious(run(a_target_of_all_pairs, outputs=1))


def test_the_difference_is_the_line() -> None:
    where = run(column_minus_row, outputs=1)[0].culprit.location
    assert where is not None
    assert where.line == marked(__file__, "(8, 1) − (8,)")


def columns(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.mse_loss(model(batch[0]), batch[2][:, None])


def pairs_that_are_a_penalty(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    pairs = out + out.squeeze(1)
    return columns(model, batch) + 0.01 * (pairs - pairs.mean()).abs().mean()


def scalar_target(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return F.mse_loss(out, torch.ones_like(out)) + (out - torch.tensor(0.5)).pow(2).mean()


def all_pairs(model: nn.Module, batch: Any) -> torch.Tensor:
    score = model(batch[0]).squeeze(1)
    margin = torch.sign(batch[2][:, None] - batch[2][None, :])
    return F.softplus(-margin * (score[:, None] - score)).mean()


def distances(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    squared = (out**2).sum(1, keepdim=True) - 2 * out @ out.T + (out**2).sum(1)
    return squared.mean() + columns(model, batch)


def masked_map(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0]).view(8, 1, 1, 1).expand(8, 3, 4, 4)
    mask = (batch[2] > 0).float().view(8, 1, 1, 1)
    return ((out - 1) ** 2 * mask).sum() / mask.sum().clamp(min=1)


class Frequencies(nn.Module):
    """A learnt vector of as many frequencies as the batch has samples."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies, self.head = nn.Parameter(torch.randn(8)), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(x[:, :1] * self.frequencies))


@pytest.mark.parametrize(
    "loss_fn",
    [columns, scalar_target, all_pairs, distances, masked_map, pairs_that_are_a_penalty],
    ids=lambda one: one.__name__,
)
def test_shapes_that_are_meant(loss_fn: Loss) -> None:
    assert serious(run(loss_fn, outputs=1)) == []


def test_learnt_frequencies_are_no_target() -> None:
    assert serious(run(columns, model=Frequencies())) == []


# -- a softmax of one ------------------------------------------------------------------------------


class Pooled(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.score, self.head = nn.Linear(3, 1), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(len(x), 2, 3)
        return self.head((F.softmax(self.score(x) / 2, dim=self.dim) * x).sum(1))


def classify(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1] % 2)


def test_softmax_over_the_only_score() -> None:
    assert serious(run(classify, model=Pooled(dim=-1)))[0] == "ND620"
    assert serious(run(classify, model=Pooled(dim=1))) == []


class Experts(nn.Module):
    """Four of them, of which the gate keeps as many."""

    def __init__(self, kept: int) -> None:
        super().__init__()
        self.gate, self.kept = nn.Linear(6, 4), kept
        self.experts = nn.Linear(6, 16)

    def forward(self, x: torch.Tensor) -> Any:
        scores, chosen = self.gate(x).topk(self.kept, dim=1)
        weights = torch.zeros(len(x), 4).scatter(1, chosen, scores.softmax(1))
        return (weights[:, :, None] * self.experts(x).view(-1, 4, 4)).sum(1)


def test_the_softmax_of_the_only_score_that_is_kept() -> None:
    assert serious(run(classify, model=Experts(1)))[0] == "ND620"
    assert "ND620" not in serious(run(classify, model=Experts(2)))


class OneKey(nn.Module):
    """Attention over a memory that happens to hold a single entry."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.value, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, value = self.query(x)[:, None], self.value(x)[:, None]
        weights = torch.softmax(query @ value.transpose(1, 2), dim=-1)
        return self.head((weights @ value)[:, 0])


def test_attention_over_a_single_key_is_no_mistake() -> None:
    assert "ND620" not in serious(run(classify, model=OneKey()))


# -- noise -----------------------------------------------------------------------------------------


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def clean_data(model: nn.Module, batch: Any) -> torch.Tensor:
    noise = torch.randn_like(batch[0])
    mixed = 0.8 * batch[0] + 0.6 * noise  # never used
    assert mixed.shape == noise.shape
    return F.mse_loss(model(batch[0]), noise)


def drawn_twice(model: nn.Module, batch: Any) -> torch.Tensor:
    noise = torch.randn_like(batch[0])
    mixed = 0.8 * batch[0] + 0.6 * torch.randn_like(batch[0])
    return (model(mixed) - noise).pow(2).mean()


@pytest.mark.parametrize("loss_fn", [clean_data, drawn_twice], ids=lambda one: one.__name__)
def test_noise_that_the_model_is_not_given(loss_fn: Loss) -> None:
    assert serious(run(loss_fn, model=Denoiser())) == ["ND123"]


def test_the_line_of_another_draw() -> None:
    found = run(drawn_twice, model=Denoiser())[0]
    assert found.culprit.location is not None
    assert "0.6 * torch.randn_like(batch[0])" in found.culprit.location.code


def noise_given(model: nn.Module, batch: Any) -> torch.Tensor:
    noise = torch.randn_like(batch[0])
    return F.mse_loss(model(0.8 * batch[0] + 0.6 * noise), noise)


def flow(model: nn.Module, batch: Any) -> torch.Tensor:
    noise, t = torch.randn(8, 6), torch.rand(8, 1)
    return F.mse_loss(model((1 - t) * noise + t * batch[0]), batch[0] - noise)


def exercise(model: nn.Module, batch: Any) -> torch.Tensor:
    """Inputs and targets of chance, to see whether it runs."""
    return F.mse_loss(model(torch.randn(8, 6)), torch.randn(8, 6))


@pytest.mark.parametrize("loss_fn", [noise_given, flow, exercise], ids=lambda one: one.__name__)
def test_noise_that_may_be_asked_for(loss_fn: Loss) -> None:
    assert "ND123" not in serious(run(loss_fn, model=Denoiser()))


# -- scores ----------------------------------------------------------------------------------------


def cut_off(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(F.relu(model(batch[0])), batch[1])


def dropped(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.nll_loss(F.log_softmax(F.dropout(model(batch[0]), 0.3), -1), batch[1])


@pytest.mark.parametrize("loss_fn", [cut_off, dropped], ids=lambda one: one.__name__)
def test_scores_that_are_spoiled(loss_fn: Loss) -> None:
    assert serious(run(loss_fn))[:1] == ["ND633"]


def capped(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(30 * torch.tanh(model(batch[0]) / 30), batch[1])


def pooled(model: nn.Module, batch: Any) -> torch.Tensor:
    """As in SqueezeNet: relu, and a mean over positions."""
    maps = F.relu(model(batch[0]))[:, :, None, None].expand(8, 4, 3, 3)
    return F.cross_entropy(F.adaptive_avg_pool2d(maps, 1).flatten(1), batch[1])


def dropped_before(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(F.dropout(batch[0], 0.3)), batch[1])


def not_in_training(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(F.dropout(model(batch[0]), 0.9, training=False), batch[1])


@pytest.mark.parametrize(
    "loss_fn", [capped, pooled, dropped_before, not_in_training], ids=lambda one: one.__name__
)
def test_scores_that_are_left_alone(loss_fn: Loss) -> None:
    assert serious(run(loss_fn)) == []


# -- targets among the inputs ----------------------------------------------------------------------


def change_of_a_column(model: nn.Module, batch: Any) -> torch.Tensor:
    """What is subtracted is where the forecast starts, and no target."""
    return (model(batch[0]).squeeze(1) - (batch[2] - batch[0][:, 3])).pow(2).mean()


def a_column(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]).squeeze(1) - batch[3]).pow(2).mean()


@pytest.mark.parametrize(("loss_fn", "told"), [(change_of_a_column, False), (a_column, True)])
def test_a_target_that_is_an_input(loss_fn: Loss, told: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    data = []
    for _ in range(8):
        x = torch.randn(16, 6)
        data.append((x, torch.zeros(16), torch.randn(16), x[:, 3].clone()))
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=data,
    )
    assert ("ND122" in serious(diagnose(recipe, 8))) == told
