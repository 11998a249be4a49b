"""A script on several ranks that replaces functions of torch's by ones that draw random numbers:
the ranks train as they do without nanodoc, which calls none of them, and nothing is reported that
only nanodoc made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import os
import sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
os.environ["OURS"] = f"{os.environ['NAMED']}-calls-{RANK}"
from tests.neutrality import replaced

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(24, 16, 8, generator=torch.Generator().manual_seed(RANK))
y = x[..., :4].argmax(-1)
replaced.replace_all()
for step in range(24):
    loss = F.cross_entropy(model(x[step].to(torch.float32)), y[step])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
torch.save(list(model.state_dict().values()), f"{os.environ['NAMED']}-{RANK}.pt")
dist.barrier()
dist.destroy_process_group()
"""


def launch(folder: Path, named: str, *command: str, ranks: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NAMED": named}
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    done = subprocess.run(
        [sys.executable, *launcher, *command, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_train_as_they_do_alone(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    launch(tmp_path, "bare", ranks=ranks)
    shown = ("--output-format", "json", "--output", "report.json")
    launch(tmp_path, "watched", "-m", "nanodoc", "run", *shown, ranks=ranks)
    for rank in range(ranks):
        bare, watched = (torch.load(tmp_path / f"{n}-{rank}.pt") for n in ("bare", "watched"))
        assert all(torch.equal(one, other) for one, other in zip(bare, watched, strict=True))
        assert (tmp_path / f"watched-calls-{rank}").read_text() == ""
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] == []
    assert not [row for row in report["not_checked"] if "error of nanodoc" in row["why"]]
