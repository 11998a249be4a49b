"""How much memory there is for a process, and whether the kernel has killed one for want of it."""

from __future__ import annotations

import re
from pathlib import Path

from nanodoc.environment import system

_GROUP = Path("/sys/fs/cgroup")


class MemoryWatch:
    """Counts the kernel's out-of-memory kills while it lives. Source: memory.events of cgroup v2,
    else the oom_kill line of /proc/vmstat (Linux ≥ 4.13); without either, none are ever seen."""

    def __init__(self) -> None:
        self._before = _kills()

    def kills(self) -> int:
        """Processes killed since."""
        return _kills() - self._before


def _kills() -> int:
    for path in (_GROUP / "memory.events", Path("/proc/vmstat")):
        try:
            found = re.search(r"^oom_kill (\d+)$", path.read_text(), re.M)
        except OSError:
            continue
        if found is not None:
            return int(found[1])
    return 0


def memory_limit() -> tuple[int | None, str]:
    """(bytes, whose limit): the container's, else the machine's."""
    limit = system.memory_limit()
    try:
        total = system.memory()[0]
    except OSError:  # a system that does not say
        total = 0
    if limit is not None and (not total or limit < total):
        return limit, "the container"
    return total or None, "the machine"
