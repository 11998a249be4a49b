"""How fast an all_reduce is: the time of a small one (latency) and of large ones (bandwidth)."""

from __future__ import annotations

import statistics
import time

import torch
import torch.distributed as dist

from nanodoc.net.checks import Place
from nanodoc.net.record import Speed

SMALL = 8  # bytes: all of its time is latency
_RUNS_OF_SMALL, _RUNS = 20, 3
_SHARE = 0.5  # of the timeout that one size may take


def measure(place: Place, size: int, before: Speed | None) -> Speed:
    """The median time of an all_reduce of `size` bytes, after one run to warm up.

    All ranks do as rank 0 says: where the size measured `before` tells that this one would take
    more than half of the timeout, it is left out, for a slow network is no failure.
    """
    runs = _RUNS_OF_SMALL if size <= SMALL else _RUNS
    go = torch.ones(1, device=place.device)
    if before is not None and (
        before.seconds is None
        or before.seconds * size / before.size * (runs + 1) > _SHARE * place.timeout
    ):
        go.zero_()
    dist.broadcast(go, src=0)
    if not float(go):
        return Speed(size=size, seconds=None)
    values = torch.ones(size // 4, dtype=torch.float32, device=place.device)
    times = []
    for _ in range(runs + 1):
        values.fill_(1.0)
        place.synchronize()
        start = time.perf_counter()
        dist.all_reduce(values)
        place.synchronize()
        times.append(time.perf_counter() - start)
    return Speed(size=size, seconds=statistics.median(times[1:]))
