"""A GradScaler keeps its scale in float32, also where everything else of the step is tried in
float64."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training

TRAIN = """
import torch

def train_step(model, batch, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(batch)
    loss = (out.float() / batch.sum(1, keepdim=True)).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    data = [torch.rand(3, 4) for _ in range(4)]
    data[2][1] = 0.0
    return {"model": model, "train_step": train_step, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
            "scaler": torch.amp.GradScaler("cpu", init_scale=256.0), "max_steps": 4}
"""


def test_the_step_runs_in_float64(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    first = run_training("train.py:build", Config(device="cpu")).findings[0]
    told = {row["name"]: row["outcome"] for row in first.experiments}
    assert told["float64"] == "fails too"  # it was "not run: current_scale must be a float tensor"
