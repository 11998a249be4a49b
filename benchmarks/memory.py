"""The peak of memory, each way in a process of its own: what the model and its steps add to it."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.devices import device_named
from benchmarks.internals import accelerator
from benchmarks.ways import Ways

NO_COPIES = "monitored, no copies"
"""Monitored without copies of the weights for experiments, and without sampled steps."""
WAYS = ("bare", "monitored", NO_COPIES, "traced", "anomaly mode")


def peak_memory(
    name: str, device: torch.device, ways: tuple[str, ...] = WAYS, repeats: int = 2
) -> dict[str, float]:
    """Peak memory of each way as a ratio to the bare loop's."""
    context = multiprocessing.get_context("spawn")
    # every tensor gets pages of its own, given back when it dies: otherwise the heap's
    # fragmentation is measured
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    peaks = {}
    for way in ways:
        seen = []
        for _ in range(repeats):
            queue: Any = context.Queue()
            process = context.Process(target=_peak, args=(name, way, str(device), queue))
            process.start()
            seen.append(queue.get(timeout=300))
            process.join()
        peaks[way] = statistics.median(seen)
    return {way: peak / peaks["bare"] for way, peak in peaks.items()}


def _peak(name: str, way: str, device_name: str, out: Any) -> None:
    device = device_named(device_name)
    # libraries load on first use; their memory is no model's
    copies = way != NO_COPIES
    way = way if copies else "monitored"
    tiny = Ways("lstm", device, now_and_then=copies)
    tiny.ways[way]()
    before = resident("VmRSS")
    ways = Ways(name, device, now_and_then=copies)
    ways.bare()
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    for _ in range(3):
        ways.ways[way]()
    if device.type != "cpu":
        out.put(accelerator.peak_memory(device))
    else:
        out.put(resident("VmHWM") - before)
    ways.close()


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (its peak) of this process, in bytes; Linux."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
