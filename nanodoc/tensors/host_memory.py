"""How much memory is free, on the host or on a device, as far as they tell."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from nanodoc import accelerator


def free_memory(device: torch.device) -> int | None:
    """Bytes that could be taken on a device; on the CPU without swapping. None where nobody
    says."""
    if device.type == "cpu":
        return free_host_memory()
    told = accelerator.memory_info(device)
    return told[0] if told is not None else None


def free_host_memory() -> int | None:
    """Bytes that could be taken without swapping, the container's limit considered; None where the
    system doesn't say."""
    free = _available()
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        most, now = _number(limit), _number(used)
        if most is not None and now is not None:
            left = max(most - now, 0)
            free = left if free is None else min(free, left)
    return free


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None
