"""The device that is measured on, and how to wait for it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.internals import accelerator

ROOT = Path(__file__).resolve().parent.parent
SIMULATED = "sim"


def simulated() -> Any:
    """The simulated accelerator of the tests, as a module: no package, and loaded by name alone."""
    folder = str(ROOT / "tests" / "accelerator" / "backend")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module("simulated_accelerator")


def device_named(name: str) -> torch.device:
    """`pick_device`, and the simulated accelerator, which is loaded when it is asked for."""
    if name.startswith(SIMULATED):
        sim = simulated()
        sim.build()
        sim.register()
    return accelerator.pick_device(name)


def devices_for(name: str) -> list[torch.device]:
    """The device of that name; for `auto` the CPU, and the accelerator where there is one."""
    here = accelerator.current()
    if name != "auto":
        return [device_named(name)]
    return [torch.device("cpu"), *([here] if here is not None else [])]


def shown(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU, {torch.get_num_threads()} threads"
    return accelerator.device_name(device) or str(device)


def synchronize(device: torch.device) -> None:
    accelerator.synchronize(device)
