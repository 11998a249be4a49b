"""What a lookup, a loss or a distribution refuses is told at the line where the value left its
range, with the line that raised as evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Bernoulli, Categorical, Distribution, Normal

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose, marked

Batch = dict[str, torch.Tensor]
Loss = Callable[[nn.Module, Batch], torch.Tensor]

CLASSES, TABLE, LONG = 5, 40, 48


@pytest.fixture(autouse=True)
def _distributions_refuse() -> Iterator[None]:
    """`torch.compile` of an earlier test may have switched their checks off for the process."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TABLE, 8)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


def _batches(steps: int = 4) -> list[Batch]:
    random = torch.Generator().manual_seed(1)
    made = []
    for _ in range(steps):
        score = torch.rand(32, generator=random)
        score[3], score[7] = 1.0, 0.0
        made.append(
            {
                "x": torch.randn(32, 8, generator=random),
                "score": score,
                "ids": torch.randint(0, TABLE - 4, (32, 6), generator=random),
                "pixels": torch.randint(0, 256, (32,), generator=random),
            }
        )
    return made


def quantised(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        width = CLASSES if sick else CLASSES - 1
        scaled = batch["score"] * width  # quantised
        labels = scaled.floor().long()
        return F.cross_entropy(model(batch["x"]), labels)

    return loss


def shifted(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        special = 6 if sick else 4
        ids = batch["ids"] + special  # shifted
        ids = ids.flatten(0, 1).view(32, 6)
        words = model.words(ids).mean(1)
        return F.cross_entropy(model(words), batch["pixels"] % CLASSES)

    return loss


def positions(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        length = LONG if sick else TABLE
        places = torch.arange(length)  # positions
        places = places.expand(32, -1)
        return F.cross_entropy(model(model.words(places).mean(1)), batch["pixels"] % CLASSES)

    return loss


def drawn(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        end = TABLE + 30 if sick else TABLE
        negatives = torch.randint(0, end, (32, 4))  # drawn
        others = model.words.weight[negatives].mean(1)
        return F.cross_entropy(model(batch["x"] + others), batch["pixels"] % CLASSES)

    return loss


def binned(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        edges = torch.linspace(-1, 1, CLASSES if sick else CLASSES - 1)
        bins = torch.bucketize(8 * batch["x"][:, 0], edges)  # binned
        wanted = F.one_hot(bins, CLASSES).float()
        return F.mse_loss(model(batch["x"]).softmax(-1), wanted)

    return loss


def of_pixels(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        # most values are out of the classes' range before, and come into it here
        labels = batch["pixels"] // (48 if sick else 52)  # of pixels
        return F.cross_entropy(model(batch["x"]), labels)

    return loss


def noise_levels(sick: bool) -> Loss:
    table = torch.linspace(1, 0, 100)

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        bias = (1 - batch["score"] ** 3) * (100 if sick else 99)  # noise levels
        level = table[bias.long()]
        return F.mse_loss(model(batch["x"] * level[:, None]), torch.ones(32, CLASSES))

    return loss


def kept(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        gate = torch.sigmoid(model(batch["x"])) * (1.5 if sick else 1.0)  # kept
        mask = torch.bernoulli(gate.detach())
        return (gate * mask).mean()

    return loss


def probable(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        chance = torch.sigmoid(model(batch["x"]))
        chance = chance + (0.5 if sick else 0.0)  # probable
        return -Bernoulli(probs=chance).log_prob(torch.ones(32, CLASSES)).mean()

    return loss


def spread(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        out = F.softplus(model(batch["x"]))
        width = out - (1.0 if sick else -0.1)  # spread
        return -Normal(torch.zeros(32, CLASSES), width).log_prob(batch["x"][:, :1]).mean()

    return loss


def crossed(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        chance = model(batch["x"]).softmax(-1)
        mixed = chance * (1.7 * CLASSES if sick else 1.0)  # crossed
        target = F.one_hot(batch["pixels"] % CLASSES, CLASSES).float()
        return F.binary_cross_entropy(mixed.flatten(), target.flatten())

    return loss


def chosen(sick: bool) -> Loss:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        actions = batch["pixels"] % CLASSES
        actions = actions + 1 if sick else actions  # chosen
        return -Categorical(logits=model(batch["x"])).log_prob(actions).mean()

    return loss


CASES: dict[str, tuple[Callable[[bool], Loss], str]] = {
    "quantised": (quantised, "label-out-of-range"),
    "shifted": (shifted, "index-out-of-range"),
    "positions": (positions, "index-out-of-range"),
    "drawn": (drawn, "index-out-of-range"),
    "binned": (binned, "index-out-of-range"),
    "of pixels": (of_pixels, "label-out-of-range"),
    "noise levels": (noise_levels, "index-out-of-range"),
    "kept": (kept, "probability-range"),
    "probable": (probable, "probability-range"),
    "spread": (spread, "probability-range"),
    "crossed": (crossed, "probability-range"),
    "chosen": (chosen, "probability-range"),
}


def _recipe(loss: Loss) -> Recipe:
    torch.manual_seed(0)
    model = Network()
    return Recipe(
        model=model,
        data=_batches(),
        loss_fn=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    )


@pytest.mark.parametrize("case", CASES)
def test_the_line_where_it_left_its_range(case: str) -> None:
    make, name = CASES[case]
    found = diagnose(_recipe(make(True)), 4)[0]
    place: Any = found.culprit.location
    assert (found.name, place.line) == (name, marked(__file__, case))
    assert "leave the range here" in found.explanation
    assert any(label == "refused at" for label, _ in found.evidence)


@pytest.mark.parametrize("case", CASES)
def test_values_in_their_range(case: str) -> None:
    make, _ = CASES[case]
    assert [f.name for f in diagnose(_recipe(make(False)), 4) if f.severity != "info"] == []


def test_labels_of_the_data() -> None:
    """They were out of range when the step began: the line of the loss is told, as for any batch."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        labels = batch["pixels"].long().view(-1)
        return F.cross_entropy(model(batch["x"]), labels)  # of the data

    found = diagnose(_recipe(loss), 4)[0]
    place: Any = found.culprit.location
    assert (found.name, place.line) == ("label-out-of-range", marked(__file__, "of the data"))
    assert "leave the range" not in found.explanation


def test_numbers_of_the_line_itself() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        special = torch.tensor([0, 3, TABLE])  # numbers
        words = model.words(special.flip(0))
        return F.cross_entropy(model(words), batch["pixels"][:3] % CLASSES)

    found = diagnose(_recipe(loss), 4)[0]
    place: Any = found.culprit.location
    assert (found.name, place.line) == ("index-out-of-range", marked(__file__, "numbers"))


def test_weights_of_a_loss_are_no_probabilities() -> None:
    """They are above 1, and so is the input: that is told."""

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        weights = 3 * torch.ones(32, CLASSES)
        mixed = 1.5 + model(batch["x"]).sigmoid()  # mixed
        target = F.one_hot(batch["pixels"] % CLASSES, CLASSES).float()
        return F.binary_cross_entropy(mixed, target, weight=weights)

    found = diagnose(_recipe(loss), 4)[0]
    place: Any = found.culprit.location
    assert (found.name, place.line) == ("probability-range", marked(__file__, "mixed"))


def test_labels_beside_those_that_are_ignored() -> None:
    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        labels = (batch["score"] * CLASSES).long()  # ignored
        labels = labels.masked_fill(batch["pixels"] > 200, -100)
        return F.cross_entropy(model(batch["x"]), labels)

    found = diagnose(_recipe(loss), 4)[0]
    place: Any = found.culprit.location
    assert (found.name, place.line) == ("label-out-of-range", marked(__file__, "ignored"))
