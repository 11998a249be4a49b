"""Random states as a snapshot's plain values, and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from nanodoc.replay.plain_values import plain
from nanodoc.replay.rng import RandomState


def random_content(rng: RandomState) -> dict[str, Any]:
    """Random states as plain values; `random_state` reads them."""
    return {
        "python": plain(rng.python),
        "numpy": plain(rng.numpy),
        "cpu": rng.cpu,
        "device": next(iter(rng.accelerators.values()), None),
        "devices": {str(device): state for device, state in rng.accelerators.items()},
    }


def random_state(content: Mapping[str, Any]) -> RandomState | None:
    """The snapshot's random states, None for a bare snapshot."""
    saved = content.get("rng")
    if not isinstance(saved, Mapping):
        return None
    python = saved["python"]
    numpy = saved.get("numpy")
    if numpy is not None:
        numpy = (numpy[0], numpy[1].numpy().astype("uint32"), *numpy[2:])
    return RandomState(
        (python[0], tuple(python[1]), python[2]), numpy, saved["cpu"], _accelerators(content, saved)
    )


def _accelerators(
    content: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[torch.device, torch.Tensor]:
    """The accelerators' random states by device; types of device that this torch does not know are
    left out."""
    states = saved.get("devices")
    if not states and saved.get("device") is not None:  # written before several devices were kept
        machine = content.get("machine")
        states = (
            {str(machine.get("device")): saved["device"]} if isinstance(machine, Mapping) else {}
        )
    found = {}
    for name, state in (states or {}).items():
        with contextlib.suppress(RuntimeError):
            found[torch.device(name)] = state
    return found
