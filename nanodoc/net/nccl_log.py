"""NCCL's own log, read: which of its lines matter and what they mean. Nothing here imports torch.

The meanings follow NVIDIA's documentation of NCCL (environment variables, troubleshooting).
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

_LONGEST, _MOST_BYTES = 200, 2**20

# The first pattern that fits explains a line; the order is that of the report, what went wrong
# first.
MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"Duplicate GPU detected",
        "two ranks use the same GPU: each must use the GPU with the index LOCAL_RANK",
    ),
    (r"\bWARN\b", "a warning or error from NCCL; the first one usually causes the others"),
    (
        r"nv_peer_mem|nvidia[-_]peermem",
        "GPUDirect RDMA: without this kernel module the network card can't read GPU memory, so "
        "data goes through host memory",
    ),
    (
        r"GPU Direct RDMA (?:Disabled|disabled)",
        "the network card can't read GPU memory, so data goes through host memory, which is slower",
    ),
    (
        r"set by environment to",
        "a variable that changes what NCCL does; unset it if you don't know why it is set",
    ),
    (
        r"Bootstrap ?: ?Using",
        "the interface through which ranks find each other; it must connect the hosts "
        "(NCCL_SOCKET_IFNAME sets it)",
    ),
    (
        r"NET/IB : No device found",
        "no InfiniBand or RoCE here: traffic between hosts will use TCP sockets",
    ),
    (r"NET/IB : Using", "traffic between hosts uses InfiniBand or RoCE through these devices"),
    (
        r"NET/Socket : Using",
        (
            "traffic between hosts uses TCP sockets through these interfaces; much slower than "
            "InfiniBand"
        ),
    ),
    (r"NET/OFI", "traffic between hosts uses libfabric (such as AWS EFA)"),
    (r"Using network", "the network type chosen for traffic between hosts"),
    (r"via P2P", "these two GPUs exchange data directly, over NVLink or PCIe"),
    (
        r"via SHM",
        "these two GPUs exchange data through the host's shared memory: they can't reach each "
        "other directly (NCCL_P2P_DISABLE, a virtual machine, or PCIe access control)",
    ),
    (
        r"via NET/\S*GDRDMA",
        "between hosts; the network card reads GPU memory directly, which is fastest",
    ),
    (r"via NET", "between hosts, through host memory"),
    (r"via direct|via COLLNET|via NVLS", "through the network switch or the NVLink switch"),
    (r"NCCL version", "must be the same on every host"),
    (r"Init COMPLETE", "the ranks have found each other; what fails later fails in a collective"),
)


def enable(environment: MutableMapping[str, str]) -> Callable[[], tuple[str, ...]]:
    """Asks NCCL and torch for their logs, before either is loaded; what is set already is kept.

    NCCL writes into a file of this process's own, so that the lines of several ranks don't mix;
    gives what reads its lines.
    """
    environment.setdefault("NCCL_DEBUG", "INFO")
    environment.setdefault("NCCL_DEBUG_SUBSYS", "INIT,BOOTSTRAP,NET,ENV")
    environment.setdefault("TORCH_DISTRIBUTED_DEBUG", "INFO")
    if "NCCL_DEBUG_FILE" in environment:
        return tuple
    descriptor, name = tempfile.mkstemp(prefix="nanodoc-nccl-", suffix=".log")
    os.close(descriptor)
    environment["NCCL_DEBUG_FILE"] = name
    return lambda: important(read(Path(name)))


def discard(environment: MutableMapping[str, str]) -> None:
    """Takes the file of `enable` away, where it is ours."""
    path = Path(environment.get("NCCL_DEBUG_FILE", ""))
    if path.name.startswith("nanodoc-nccl-"):
        path.unlink(missing_ok=True)


def read(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES).splitlines()
    except OSError:
        return []


def important(lines: list[str]) -> tuple[str, ...]:
    """The first line of each kind that is explained, in the order of `MEANINGS`."""
    first: dict[str, str] = {}
    for line in lines:
        pattern = next((pattern for pattern, _ in MEANINGS if re.search(pattern, line)), None)
        if pattern is not None:
            first.setdefault(pattern, line.strip()[:_LONGEST])
    return tuple(first[pattern] for pattern, _ in MEANINGS if pattern in first)


def meaning(line: str) -> str | None:
    return next((text for pattern, text in MEANINGS if re.search(pattern, line)), None)
