"""With several ranks, another listener of nanodoc's stood between torch's clipping and the one that
asks for the user's line, and its file was missing from the list of files that are looked through:
ND624 and ND403 named no line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
net = DistributedDataParallel(nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=SCALED)
for step in range(6):
    x, y = torch.randn(16, 8), torch.randint(3, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
BODY
dist.destroy_process_group()
"""
CASES = {
    "ND624": (False, ("scaler.step(optimizer)", "CLIP")),
    "ND403": (True, ("CLIP", "scaler.step(optimizer)", "scaler.update()")),
}
CLIP = "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"


@pytest.mark.parametrize("code", CASES)
def test_the_line_of_the_clip(code: str, tmp_path: Path) -> None:
    scaled, lines = CASES[code]
    body = "\n".join(f"    {line.replace('CLIP', CLIP)}" for line in lines)
    text = SCRIPT.replace("SCALED", str(scaled)).replace("BODY", body)
    (tmp_path / "train.py").write_text(text)
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", cwd=tmp_path, ranks=2)
    assert (tmp_path / "report.json").exists(), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    found = next(finding for finding in report["findings"] if finding["code"] == code)
    assert found["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", CLIP)
