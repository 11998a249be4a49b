"""Steps on scaled gradients whose loss grew until it was NaN: the divergence was dropped as their
effect, then everything but a divergence, and the run was called healthy."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp.grad_scaler import GradScaler

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import marked


def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.cross_entropy(model(batch[0]), batch[1])
    scaler.scale(loss).backward()
    optimizer.step()  # on scaled gradients
    return loss


def sick() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3))
    x = torch.randn(48, 6)
    return {
        "model": model,
        "train_step": step,
        "data": list(zip(x.split(8), x[:, :3].argmax(1).split(8), strict=True)),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "scaler": GradScaler("cpu", init_scale=1024.0),
        "max_steps": 12,
    }


def test_the_call_is_named_and_not_nothing() -> None:
    (first,) = run_training(f"{__file__}:sick", Config(device="cpu")).findings
    assert (first.name, first.severity) == ("scaler-call-order", "critical")
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "on scaled gradients")
