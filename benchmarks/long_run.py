"""A long run: whether a step's cost and the memory grow with the number of steps behind it."""

from __future__ import annotations

import gc
import sys
import time

import torch

from benchmarks.memory import resident
from benchmarks.ways import Ways

QUARTERS = 4
_TURN = 100
"""Steps that one way takes before the other has its turn."""


def long_run(
    steps: int, device: torch.device, name: str = "mlp-0.5ms"
) -> dict[str, dict[str, float]]:
    """`steps` watched steps and as many bare ones in turn: by quarter of the run the ratio of their
    times, the milliseconds that watching adds to a step, and the growth of the resident memory in
    MiB since the first hundred steps (Linux; else 0)."""
    ways = Ways(name, device)
    _seconds(ways, "monitored")
    _seconds(ways, "bare")
    start = _resident()
    quarters: dict[str, dict[str, float]] = {}
    turns = max(1, steps // QUARTERS // _TURN)
    for quarter in range(1, QUARTERS + 1):
        bare = watched = 0.0
        for _ in range(turns):
            bare += _seconds(ways, "bare")
            watched += _seconds(ways, "monitored")
        quarters[f"{quarter * turns * _TURN}"] = {
            "ratio": watched / bare,
            "adds_ms": (watched - bare) / (turns * _TURN) * 1e3,
            "grown_mib": (_resident() - start) / 2**20,
        }
    ways.close()
    return quarters


def _seconds(ways: Ways, way: str) -> float:
    step = ways.ways[way]
    began = time.perf_counter()
    for _ in range(_TURN):
        step()
    return time.perf_counter() - began


def _resident() -> int:
    gc.collect()
    return resident("VmRSS") if sys.platform == "linux" else 0
