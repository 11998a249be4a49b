"""Steps as users write them, for the device of the tests."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(out.flatten(0, -2), batch[1].to(out.device).flatten())


def own_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def scaled_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("sim", dtype=torch.float16):
        loss = loss_of(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss
