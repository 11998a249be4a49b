"""A graph's sparse adjacency was cut into rows to find the guilty samples: an error of nanodoc's own,
and what was found would have said nothing, since the rows of a graph are not apart."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training

TRAIN = """
import torch
from torch import nn

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x, adjacency):
        degree = torch.sparse.sum(adjacency, 1).to_dense()
        return torch.sparse.mm(adjacency, self.linear(x)) / degree[:, None]

def build():
    torch.manual_seed(0)
    model = Graph()
    adjacency = torch.eye(8)
    adjacency[3] = 0.0
    batch = (torch.randn(8, 4), adjacency.to_sparse(), torch.randint(0, 3, (8,)))
    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])
    return {"model": model, "loss_fn": loss_fn, "data": [batch], "max_steps": 2,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
"""


def test_no_error_of_ours_and_the_line_is_the_divisions(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    report = run_training("train.py:build", Config(device="cpu"))
    assert not [why for _, why in report.not_checked if "nanodoc's own" in why]
    first = report.findings[0]
    assert first.name == "division-by-zero"
    assert first.culprit.location is not None
    assert "degree[:, None]" in first.culprit.location.code
