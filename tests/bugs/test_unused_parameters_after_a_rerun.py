"""DistributedDataParallel(find_unused_parameters=True) with another branch in the second step than
in the first: the first step's second run counted as one under no_sync(), and the training ended
with "Encountered gradient which is undefined, but still allreduced by DDP reducer"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import contextlib, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

accumulates = "accumulates" in sys.argv

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x, first):
        return (self.a if first else self.b)(self.trunk(x).tanh())

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(10):
    x = torch.randn(8, 4)
    waits = accumulates and step % 2 == 0
    with model.no_sync() if waits else contextlib.nullcontext():
        loss = (model(x, step % 2 == 0) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
    if not waits:
        optimizer.step()
        optimizer.zero_grad()
open(f"weights{rank}.txt", "w").write(str([p.tolist() for p in model.parameters()]))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("words", [(), ("accumulates",)])
def test_it_trains_as_without_nanodoc(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("python", "train.py", *words, cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    files = [tmp_path / f"weights{rank}.txt" for rank in range(2)]
    bare = [file.read_text() for file in files]
    for file in files:
        file.unlink()
    told = ("--output-format", "json", "--output", "report.json")
    nanodoc("run", *told, "train.py", "--", *words, cwd=tmp_path, ranks=2)
    assert [file.read_text() for file in files] == bare
    report = json.loads((tmp_path / "report.json").read_text())
    assert [rank["ended"] for rank in report["ranks"]] == ["well", "well"]
