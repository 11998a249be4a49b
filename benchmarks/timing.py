"""The time of a step, each way: ratios to the bare loop from rounds in which every way takes its
turn."""

from __future__ import annotations

import gc
import random
import statistics
import time
from typing import Any

import torch

from benchmarks.devices import synchronize
from benchmarks.ways import Ways

_FULL = 10
"""Monitored steps before any is timed: until the first that is watched by its loss alone."""
Seconds = dict[str, list[float]]
"""Of a step, by way and round."""


def timed(name: str, device: torch.device, repeats: int, length: float) -> dict[str, Any]:
    """What a step of each way takes; a repetition lasts about `length` seconds of bare steps."""
    ways = Ways(name, device, with_transformers=True)
    for way in ways.ways.values():
        way()
    for _ in range(_FULL):
        ways.loop.step()
    began = time.perf_counter()
    ways.bare()
    synchronize(device)
    # long enough for what happens only now and then
    steps = max(3, round(length / (time.perf_counter() - began)))
    seconds = _rounds(ways, repeats, steps)
    ways.close()
    added = [a - b for a, b in zip(seconds["monitored"], seconds["bare"], strict=True)]
    return {
        "ops": ways.records,
        "bare_ms": statistics.median(seconds["bare"]) * 1e3,
        "bare_quartiles_ms": [one * 1e3 for one in quartiles(seconds["bare"])],
        "monitoring_adds_ms": statistics.median(added) * 1e3,
        "monitoring_adds_quartiles_ms": [one * 1e3 for one in quartiles(added)],
        "ratios": _ratios(seconds),
        # its looks are too rare for the median of the rounds to show
        "sampled": ways.loop.sampled(),
    }


def _rounds(ways: Ways, repeats: int, steps: int) -> Seconds:
    """In each round every way takes its turn, in a new order."""
    seconds: Seconds = {way: [] for way in ways.ways}
    order = random.Random(0)
    for _ in range(repeats):
        names = list(ways.ways)
        order.shuffle(names)
        for way in names:
            gc.collect()
            synchronize(ways.device)
            with ways.around(way):
                began = time.perf_counter()
                for _ in range(steps):
                    ways.ways[way]()
                synchronize(ways.device)
                seconds[way].append((time.perf_counter() - began) / steps)
    return seconds


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    """The median of the rounds' own ratios: drift of the machine between rounds cancels."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


def quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third: how far the machine's noise moves what is measured."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _ratios(seconds: Seconds) -> dict[str, float]:
    ratios = {way: median_ratio(values, seconds["bare"]) for way, values in seconds.items()}
    if "bare own step" in seconds:  # with clipping, which the driven loop hasn't
        ratios["monitored own step"] = median_ratio(
            seconds["monitored own step"], seconds["bare own step"]
        )
        del ratios["bare own step"]
    if "DebugUnderflowOverflow" in seconds:
        ratios["frames / DebugUnderflowOverflow"] = median_ratio(
            seconds["frames"], seconds["DebugUnderflowOverflow"]
        )
    return ratios
