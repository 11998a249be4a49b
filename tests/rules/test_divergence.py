"""A run whose loss climbs and does not come back, and what looks like it and is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from nanodoc.report.report import Report
from tests.helpers import line_of

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
X = torch.randn(256, 8)
Y = (X[:, :4].sum(1) > 0).long()
Z = X @ torch.randn(8, 1)
BATCHES = [(X[i:i + 16], Y[i:i + 16]) for i in range(0, 256, 16)] * 4
NUMBERS = [(X[i:i + 16], Z[i:i + 16]) for i in range(0, 256, 16)] * 4
Net = lambda out=2: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, out))
classes = lambda m, b: F.cross_entropy(m(b[0]), b[1])
numbers = lambda m, b: F.mse_loss(m(b[0]), b[1])
"""
DIVERGED = {
    "Adam, whose weights grow slowly": (
        """
def build():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=30.0)  # here
    return {"model": model, "loss_fn": classes, "data": BATCHES, "optimizer": optimizer}
""",
        "divergence",
    ),
    "clipped gradients": (
        """
def build():
    model = Net(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=40.0)  # here
    return {"model": model, "loss_fn": numbers, "data": NUMBERS, "optimizer": optimizer,
            "clip_grad_norm": 1.0}
""",
        "divergence",
    ),
    "a schedule that climbs too far": (
        """
def build():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=30.0, total_steps=60)  # here
    return {"model": model, "loss_fn": classes, "data": BATCHES, "optimizer": optimizer,
            "scheduler": schedule, "scheduler_interval": "step"}
""",
        "divergence",
    ),
    "a term that is maximised": (
        """
def away(m, b):
    out = m(b[0])
    return F.cross_entropy(out, b[1]) - out.square().mean()  # here

def build():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return {"model": model, "loss_fn": away, "data": BATCHES, "optimizer": optimizer}
""",
        "divergence",
    ),
    "Adam that leaps up and stays where guessing is": (
        """
def build():
    layers = [m for _ in range(6) for m in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), *layers, nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3)  # here
    return {"model": model, "loss_fn": classes, "data": BATCHES, "optimizer": optimizer}
""",
        "learning-rate-range",
    ),
    "no optimizer": (
        """
def step(model, batch, optimizer, scaler):
    model.zero_grad()
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-300.0)  # here
    return loss

def build():
    return {"model": Net(), "train_step": step, "data": BATCHES}
""",
        "divergence",
    ),
    "LBFGS without a line search": (
        """
def step(model, batch, optimizer, scaler):
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(torch.tanh(model(batch[0])), torch.tanh(batch[1]))
        loss.backward()
        return loss
    return optimizer.step(closure)

def build():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    model[2].weight.data *= 0.1
    def step(model, batch, optimizer, scaler):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            return loss
        return optimizer.step(closure)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=60.0, max_iter=4)  # here
    return {"model": model, "train_step": step, "data": [(X, Z)] * 8, "optimizer": optimizer}
""",
        "divergence",
    ),
    "a closure that does not clear the gradients": (
        """
def build():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    def step(model, batch, optimizer, scaler):
        def closure():
            loss = F.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            return loss
        return optimizer.step(closure)  # here
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    return {"model": model, "train_step": step, "data": [(X, Z)] * 8, "optimizer": optimizer}
""",
        "accumulating-gradients",
    ),
    "an op that makes much of next to nothing": (
        """
def loss(model, batch):
    output = model(batch[0])
    before = batch[1]
    ratio = torch.exp((output - before) * 1e4)  # here
    return -(ratio * 1e3).mean()

def build():
    model = Net(1)
    with torch.no_grad():
        data = [(X[i:i + 16], model(X[i:i + 16])) for i in range(0, 256, 16)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    return {"model": model, "loss_fn": loss, "data": data, "optimizer": optimizer}
""",
        "overflow",
    ),
}
HEALTHY = {
    "rough first steps": """
def build():
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return {"model": model, "loss_fn": classes, "data": BATCHES[:8], "optimizer": optimizer}
""",
    "targets that move away": """
def build():
    model = nn.Linear(8, 1)
    data = [(x, z * 1.1 ** i) for i, (x, z) in enumerate(NUMBERS)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return {"model": model, "loss_fn": numbers, "data": data, "optimizer": optimizer}
""",
    "values that learn from themselves": """
def build():
    model, target = Net(1), Net(1)
    target.load_state_dict(model.state_dict())
    def loss(model, batch):
        with torch.no_grad():
            wanted = 1.0 + 0.99 * target(batch[0].roll(1, 0))
        return F.mse_loss(model(batch[0]), wanted)
    def step(model, batch, optimizer, scaler):
        optimizer.zero_grad()
        found = loss(model, batch)
        found.backward()
        optimizer.step()
        target.load_state_dict(model.state_dict())
        return found
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return {"model": model, "train_step": step, "data": BATCHES, "optimizer": optimizer}
""",
}


def examined(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(HEAD + text)
    return run_training("train.py:build", Config(device="cpu", steps=40))


@pytest.mark.parametrize("kind", DIVERGED)
def test_the_cause_comes_first(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, name = DIVERGED[kind]
    report = examined(tmp_path, text, monkeypatch)
    first = report.findings[0]
    assert (first.name, first.severity) == (name, "critical"), first.title
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(tmp_path / "train.py", "# here")


@pytest.mark.parametrize("kind", HEALTHY)
def test_no_finding(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = examined(tmp_path, HEALTHY[kind], monkeypatch)
    assert [f.title for f in report.findings if f.severity != "info"] == []
