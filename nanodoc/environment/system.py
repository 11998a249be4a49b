"""The machine: operating system, cores, memory and limits. Standard library only; what Linux says
in /proc and /sys is read where it is."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 2**60  # cgroups of version 1 write a number near 2**63 where there is none


def operating_system() -> str:
    name = f"{platform.system()} {platform.release()} {platform.machine()}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {name}"
    except (OSError, KeyError):
        release = platform.mac_ver()[0]
        return f"macOS {release}, {name}" if release else name


def processor() -> str:
    cores = os.cpu_count()
    for line in _lines(Path("/proc/cpuinfo")):
        if line.lower().startswith(("model name", "hardware")):
            return f"{line.partition(':')[2].strip()}, {cores} cores"
    return f"{platform.processor() or platform.machine()}, {cores} cores"


def usable_cores() -> float:
    """The cores this process may use: those it is bound to, and the share that its container is
    given."""
    bound = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limits = [float(bound)]
    for folder in _folders("cpu"):
        quota, _, period = _first(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = (
                _first(folder / "cpu.cfs_quota_us"),
                _first(folder / "cpu.cfs_period_us"),
            )
        if quota.isdecimal() and period.isdecimal() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits)


def memory_limit() -> int | None:
    """What the container may use, in bytes; None where nothing limits it."""
    limits = [
        int(text)
        for folder in _folders("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := _first(folder / name)).isdecimal() and int(text) < _NO_LIMIT
    ]
    return min(limits, default=None)


def memory() -> tuple[int, int]:
    """Total and available bytes of the machine.

    Raises:
        OSError: this system doesn't say (only Linux does so in /proc).
    """
    sizes = {
        line.partition(":")[0]: line.split()[1]
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    }
    return int(sizes["MemTotal"]) * 1024, int(sizes["MemAvailable"]) * 1024


def shared_memory() -> tuple[int, int] | None:
    """Total and free bytes of /dev/shm, by which DataLoader workers hand over their batches; None
    where there is none."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return None
    usage = shutil.disk_usage(folder)
    return usage.total, usage.free


def open_files() -> tuple[int, int] | None:
    """The soft and the hard limit of open files; None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def nvidia_kernel_module() -> str | None:
    """The version of the loaded NVIDIA kernel module, None without one."""
    words = _first(Path("/proc/driver/nvidia/version")).split()
    return next((word for word in words if word[0].isdigit()), "loaded") if words else None


def _folders(controller: str) -> list[Path]:
    """This process's own control group and those above it: each of them limits."""
    found = []
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _CGROUPS / controller if controllers else _CGROUPS
        own = root / path.strip().lstrip("/")
        found += [
            folder for folder in (own, *own.parents) if folder == root or root in folder.parents
        ]
    return found


def _first(path: Path) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
