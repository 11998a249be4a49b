"""A fix is verified only by a replay that could have failed: what the last review of the trials
found."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training

PROBED = """\
import nanodoc, torch
from torch import nn


def loss_fn(model, x):
    h = model(x)
    nanodoc.probe(torch.log(h.detach()), "logs")
    return h.pow(2).mean()


def build():
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(8, 3)], "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 2}
"""

CLIPPED = """\
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(model, batch, optimizer, scaler):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(batch).float().pow(2).mean()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        scaler.step(optimizer)
        scaler.update()
        {clear}
        return loss

    return {{"model": model, "train_step": train_step, "data": [torch.randn(8, 6)], "optimizer": optimizer, "scaler": scaler, "max_steps": 6}}
"""


def first(tmp_path: Path, text: str) -> Finding:
    (tmp_path / "train.py").write_text(text)
    return run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]


def test_a_step_that_is_finite_as_it_is_verifies_nothing(tmp_path: Path) -> None:
    finding = first(tmp_path, PROBED)
    assert finding.name == "domain-error"
    assert {fix.verified for fix in finding.fixes} == {None}


def test_unscaling_first_is_verified_by_the_gradients_it_leaves(tmp_path: Path) -> None:
    finding = first(
        tmp_path,
        CLIPPED.format(clear="pass").replace(
            "        with torch", "        optimizer.zero_grad()\n        with torch", 1
        ),
    )
    assert finding.name == "clip-before-unscale"
    assert finding.fixes[0].verified is True


def test_gradients_that_are_gone_verify_nothing(tmp_path: Path) -> None:
    finding = first(tmp_path, CLIPPED.format(clear="optimizer.zero_grad()"))
    assert finding.name == "clip-before-unscale"
    assert finding.fixes[0].verified is None
