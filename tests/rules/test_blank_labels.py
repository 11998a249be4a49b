"""Labels of a CTC loss: padded, in one row, and those that are the loss's blank."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND138"
SAMPLES, FRAMES, SYMBOLS = 8, 20, 6


def claims(*, lowest: int, blank: int = 0, flat: bool = False, counted: int = 0) -> list[str]:
    """Labels from `lowest` on; `counted` paddings of each sample are counted as labels."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 5, (SAMPLES,))
    rows = [torch.randint(lowest, SYMBOLS - 1, (int(n),)) for n in lengths]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=blank)
    padded = torch.cat([padded, padded.new_full((SAMPLES, counted), blank)], 1)
    targets = torch.cat(rows) if flat else padded
    criterion = nn.CTCLoss(blank=blank, zero_infinity=True)

    def loss_fn(model: nn.Module, frames: torch.Tensor) -> torch.Tensor:
        logs = model(frames).log_softmax(-1).transpose(0, 1)
        spoken = torch.full((SAMPLES,), FRAMES)
        return criterion(logs, targets, spoken, lengths + counted)

    model = nn.Linear(4, SYMBOLS)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.randn(SAMPLES, FRAMES, 4)],
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return [f.explanation for f in diagnose(recipe, 10) if f.code == CODE]


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "in one row"])
def test_symbols_from_one_on_are_left_alone(flat: bool) -> None:
    assert claims(lowest=1, flat=flat) == []


def test_a_blank_behind_the_symbols_is_left_alone() -> None:
    assert claims(lowest=0, blank=SYMBOLS - 1) == []


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "in one row"])
def test_a_symbol_with_the_number_of_the_blank(flat: bool) -> None:
    (told,) = claims(lowest=0, flat=flat)
    assert "cannot be distinguished from it" in told


def test_lengths_that_count_padding() -> None:
    (told,) = claims(lowest=1, counted=2)
    assert "the lengths include padding" in told
