"""Q-learning of a walk on a line, from a memory of what it has met."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Line:
    """Ends at both sides. The place is an array that each step writes into."""

    def __init__(self, draws: np.random.Generator) -> None:
        self.draws = draws

    def reset(self) -> Any:
        self.place = self.draws.normal(size=3).astype(np.float32)
        return self.place

    def step(self, action: int) -> Any:
        self.place += (2 * action - 1) * 0.3 + self.draws.normal(size=3).astype(np.float32) * 0.1
        ended = bool(abs(self.place[0]) > 1.5)
        return self.place, float(self.place[0]), ended, False, {}


def _walked(copied: bool) -> list[Any]:
    draws = np.random.default_rng(0)
    env, memory = Line(draws), []
    state = env.reset()
    for _ in range(640):
        action = int(draws.integers(2))
        after, reward, ended, _, _ = env.step(action)
        if copied:
            state, after = state.copy(), after.copy()
        memory.append((state, action, np.float32(reward), after, np.float32(ended)))
        state = after
        if ended:
            state = env.reset()
    return memory


def _recipe(copied: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        state, action, reward, after, ended = batch
        with torch.no_grad():
            target = reward + 0.9 * (1 - ended) * model(after).max(1).values
        return F.smooth_l1_loss(model(state).gather(1, action[:, None]).squeeze(1), target)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(_walked(copied), batch_size=32, shuffle=True),  # type: ignore[arg-type]  # a list is a data set
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(copied=False)


def healthy() -> dict[str, Any]:
    return _recipe(copied=True)
