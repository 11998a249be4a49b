"""ND116 of attention that is written by hand, whose mask a module keeps: at the line that makes the
mask."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import marked

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.keys, self.words = nn.Embedding(12, 16), nn.Linear(16, 48), nn.Linear(16, 12)
        self.register_buffer("seen", torch.{way}(torch.ones(16, 16)))  # the mask

    def forward(self, ids):
        x = self.ids(ids)
        n = ids.shape[1]
        q, k, v = self.keys(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 4
        scores = scores.masked_fill(self.seen[:n, :n] == 0, float("-inf"))
        return self.words(x + F.softmax(scores, dim=-1) @ v)

def loss_fn(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

def build():
    torch.manual_seed(0)
    model = Reader()
    return {{"model": model, "loss_fn": loss_fn, "data": [torch.randint(12, (8, 13)) for _ in range(12)],
            "optimizer": torch.optim.Adam(model.parameters(), 1e-2)}}
"""


@pytest.mark.parametrize(("way", "told"), [("triu", True), ("tril", False)])
def test_the_line_of_the_mask(tmp_path: Path, way: str, told: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(RECIPE.format(way=way))
    config = Config(device="cpu", snapshot_dir=str(tmp_path))
    found = [(f.code, f.culprit.location) for f in run_training(f"{path}:build", config).findings]
    if not told:
        assert "ND116" not in {code for code, _ in found}
        return
    assert found[0][0] == "ND116"
    assert found[0][1] is not None
    assert found[0][1].line == marked(path, "the mask")
    assert "ND118" not in {code for code, _ in found}
