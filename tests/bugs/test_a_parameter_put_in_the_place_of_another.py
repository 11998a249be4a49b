"""An optimizer that was made before a parameter was cut shorter was told to lack that parameter, at
the optimizer's line: that it holds the old one was not seen, as their shapes differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 8), nn.Embedding(32, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, ids):
        return self.head(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))


def recipe(early):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3) if early else None
    model.places.weight = nn.Parameter(model.places.weight[:16])  # the cut
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    ids = torch.randint(20, (64, 16))
    return {
        "model": model,
        "loss_fn": lambda model, ids: nn.functional.cross_entropy(model(ids).mT, 19 - ids),
        "optimizer": optimizer,
        "data": torch.utils.data.DataLoader(ids, batch_size=8),
        "max_steps": 8,
    }
"""


@pytest.mark.parametrize("early", [True, False])
def test_the_line_is_that_of_the_new_one(tmp_path: Path, early: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{RECIPE}\n\ndef build():\n    return recipe({early})\n")
    found = run_training(f"{file}:build", Config()).findings
    at = [(f.code, f.culprit.location and f.culprit.location.line) for f in found]
    assert at == ([("ND507", line_of(str(file), "# the cut"))] if early else [])
