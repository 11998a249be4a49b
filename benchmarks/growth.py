"""How the cost of tracing, and of following the gradient flow, grows with the number of ops."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterable

import torch
from torch import nn

from benchmarks.devices import synchronize
from benchmarks.internals import FollowedChain, Tracer
from benchmarks.recipes import deep
from benchmarks.timing import median_ratio


def growth(
    device: torch.device, lengths: Iterable[int] = (2_000, 5_000, 20_000)
) -> dict[str, float]:
    """Tracing microseconds per op for chains of so many ops: linear growth leaves them alike."""
    model = nn.Linear(1, 1).to(device)
    per_op = {}
    for length in lengths:
        best = float("inf")
        for _ in range(3):
            x = torch.ones(8, device=device, requires_grad=True)
            tracer = Tracer(model, [])
            began = time.perf_counter()
            with tracer:
                y = x
                for _ in range(length // 3):
                    y = y * 1.0001
                y.sum().backward()
            records = len(tracer.finish().records)
            best = min(best, (time.perf_counter() - began) / records)
        per_op[str(length)] = best * 1e6
    return per_op


def graph_growth(
    device: torch.device, depths: Iterable[int] = (10, 100, 1000)
) -> dict[str, dict[str, float]]:
    """What following the gradient flow of one step costs for models of so many layers.

    Time as a ratio to the bare forward and backward and per op, and the memory that Python holds at
    its peak, per op. Linear growth leaves the last two alike.
    """
    return {str(layers): _followed(layers, device) for layers in depths}


def _followed(layers: int, device: torch.device) -> dict[str, float]:
    chain = FollowedChain(deep(layers, device), device)
    bare: list[float] = []
    followed: list[float] = []
    for _ in range(5):
        for way, seconds in ((chain.bare, bare), (chain.follow, followed)):
            gc.collect()
            synchronize(device)
            began = time.perf_counter()
            way()
            synchronize(device)
            seconds.append(time.perf_counter() - began)
    tracemalloc.start()
    chain.follow()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "ops": chain.ops,
        "ratio": median_ratio(followed, bare),
        "microseconds_per_op": (min(followed) - min(bare)) / chain.ops * 1e6,
        "bytes_per_op": peak / chain.ops,
    }
