"""The time of a step, each way: ratios to the bare loop from rounds in which every way takes its
turn.

What watching adds is a few percent, less than a machine drifts while the slow ways have their turn.
So bare and monitored steps have rounds of their own, with a second bare turn in each, which shows
the noise of the machine.
"""

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
_BESIDE = ("bare", "monitored", "bare again")
_OWN = ("bare own step", "monitored own step")
_ROUNDS = 15
"""Of these, at least, with turns of so many steps (`_TURN`), and one before it, for the caches."""
_TURN = 8
Seconds = dict[str, list[float]]
"""Of a step, by way and round."""


def timed(name: str, device: torch.device, repeats: int, length: float) -> dict[str, Any]:
    """What a step of each way takes; a repetition lasts about `length` seconds of bare steps."""
    ways = Ways(name, device, with_transformers=True)
    ways.ways["bare again"] = ways.bare
    for way in ways.ways.values():
        way()
    for _ in range(_FULL):
        ways.loop.step()
    began = time.perf_counter()
    ways.bare()
    synchronize(device)
    # long enough for what happens only now and then
    steps = round(length / (time.perf_counter() - began))
    beside = tuple(way for way in (*_BESIDE, *_OWN) if way in ways.ways)
    rounds = max(_ROUNDS, repeats) if length else repeats
    seconds = _rounds(ways, beside, rounds, max(steps, _TURN), untimed=1)
    all_ways = tuple(way for way in ways.ways if way != "bare again")
    others = _rounds(ways, all_ways, repeats, max(steps, 3))
    ways.close()
    added, noise = _added(seconds, "monitored"), _added(seconds, "bare again")
    return {
        "ops": ways.records,
        "bare_ms": statistics.median(seconds["bare"]) * 1e3,
        "bare_quartiles_ms": [one * 1e3 for one in quartiles(seconds["bare"])],
        "monitoring_adds_ms": statistics.median(added) * 1e3,
        "monitoring_adds_quartiles_ms": [one * 1e3 for one in quartiles(added)],
        "monitoring_mean_adds_ms": statistics.fmean(added) * 1e3,
        "bare_again": median_ratio(seconds["bare again"], seconds["bare"]),
        "again_adds_ms": statistics.median(noise) * 1e3,
        "again_quartiles_ms": [one * 1e3 for one in quartiles(noise)],
        "ratios": _ratios(seconds, others),
        # its looks are too rare for the median of the rounds to show
        "sampled": ways.loop.sampled(),
    }


def _added(seconds: Seconds, way: str) -> list[float]:
    return [a - b for a, b in zip(seconds[way], seconds["bare"], strict=True)]


def _rounds(
    ways: Ways, taking: tuple[str, ...], repeats: int, steps: int, untimed: int = 0
) -> Seconds:
    """In each round every way takes its turn, in a new order."""
    seconds: Seconds = {way: [] for way in taking}
    order = random.Random(0)
    for _ in range(repeats):
        names = list(taking)
        order.shuffle(names)
        for way in names:
            gc.collect()
            synchronize(ways.device)
            with ways.around(way):
                for _ in range(untimed):
                    ways.ways[way]()
                synchronize(ways.device)
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


def _ratios(beside: Seconds, others: Seconds) -> dict[str, float]:
    ratios = {way: median_ratio(values, others["bare"]) for way, values in others.items()}
    ratios["monitored"] = median_ratio(beside["monitored"], beside["bare"])
    if "bare own step" in beside:  # with clipping, which the driven loop hasn't
        ratios["monitored own step"] = median_ratio(
            beside["monitored own step"], beside["bare own step"]
        )
        del ratios["bare own step"]
    if "DebugUnderflowOverflow" in others:
        ratios["frames / DebugUnderflowOverflow"] = median_ratio(
            others["frames"], others["DebugUnderflowOverflow"]
        )
    return ratios
