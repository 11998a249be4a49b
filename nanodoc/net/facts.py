"""What a rank publishes about itself."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from pathlib import Path

import torch

from nanodoc import cuda
from nanodoc._version import __version__
from nanodoc.net.interfaces import (
    BRIDGES,
    Interface,
    address_towards,
    fits,
    interfaces,
    is_loopback,
    resolved,
)
from nanodoc.net.launch import Launch
from nanodoc.net.record import RankFacts

ASKED = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def gather_facts(launch: Launch, backend: str | None, port: int) -> RankFacts:
    """The facts of this rank; it takes the GPU of its local rank unless gloo was asked for."""
    device, name, identity, failed = "cpu", None, None, None
    try:
        if backend != "gloo" and cuda.available():
            device, name, identity = _gpu(launch)
    except RuntimeError as error:
        # the driver's or CUDA's: it is reported, and the rank goes on without
        failed = " ".join(str(error).split())[:200]
    there = interfaces()
    own = _own_interface(launch, there)
    return RankFacts(
        rank=launch.rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        machine=_machine(),
        nanodoc=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        cuda=torch.version.cuda or torch.version.hip,
        nccl=cuda.nccl_version() if cuda.available() else None,
        device=device,
        device_name=name,
        device_id=identity,
        device_error=failed,
        address=own.address if own else None,
        interface=own.name if own and own.name else None,
        network=own.network if own and own.network else None,
        resolves_to=resolved(socket.gethostname()),
        interfaces=tuple(record.name for record in there),
        asked_interfaces={key: os.environ[key] for key in ASKED if key in os.environ},
        port=port,
    )


def _gpu(launch: Launch) -> tuple[str, str, str]:
    # srun and some launchers show each rank its own GPU only: it is number 0 then
    index = launch.local_rank % cuda.device_count()
    told = cuda.properties(index)
    return f"cuda:{index}", told.name, told.identity


def _machine() -> str:
    """Equal for processes that see each other's pids: the boot of the kernel, and the pid namespace
    (containers have their own)."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return f"{sys.platform} {socket.gethostname()}" if sys.platform == "darwin" else ""


def _own_interface(launch: Launch, known: tuple[Interface, ...]) -> Interface | None:
    """The interface that was asked for by name, else the one towards MASTER_ADDR."""
    for key in ASKED:
        value = os.environ.get(key, "")
        named = [
            interface
            for interface in known
            if value and not value.startswith("^") and fits(key, value, interface.name)
        ]
        if named:
            return named[0]
    address = address_towards(launch.address, launch.port)
    if address is None:
        return None
    if is_loopback(address) and launch.address != "localhost" and not is_loopback(launch.address):
        # rank 0's host: many systems resolve their own name to 127.0.1.1, which says nothing about
        # the way from the other hosts
        outward = [interface for interface in known if not is_loopback(interface.address)]
        if outward:
            return min(outward, key=lambda interface: interface.name.startswith(BRIDGES))
    return next(
        (interface for interface in known if interface.address == address),
        Interface(name="", address=address, network=""),
    )
