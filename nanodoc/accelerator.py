"""The device a training runs on, whoever made it: asked through `torch.accelerator` and the
device's own module.

A device type's module (`torch.get_device_module`) need not offer everything. What it lacks is
answered with None here, never by an error. What only CUDA has is in `nanodoc.cuda`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from nanodoc.errors import UsageError

# What a device's module or torch raises for a question that it can't answer.
_NO_ANSWER = (AttributeError, AssertionError, RuntimeError, TypeError, ValueError)


# -- which -----------------------------------------------------------------------------------------


def current() -> torch.device | None:
    """The accelerator that torch would use now, with its index; None where there is the CPU alone.
    This initialises it: it is for runs that use it."""
    kind = _kind()
    return (
        torch.device(kind, max(torch.accelerator.current_device_index(), 0))
        if kind is not None
        else None
    )


def _kind() -> str | None:
    """The accelerator's type, without a context being made on a device: forked workers and
    CUDA_VISIBLE_DEVICES still have their way."""
    if not torch.accelerator.is_available():
        return None
    kind = torch.accelerator.current_accelerator()
    return kind.type if kind is not None else None


def kinds() -> tuple[str, ...]:
    """The types of device that a training may use here. Initialises none of them."""
    kind = _kind()
    return ("cpu",) if kind is None else ("cpu", kind)


def every_device(kind: str) -> tuple[torch.device, ...]:
    """All devices of an accelerator's type that torch sees; none for the CPU, or for a type that
    isn't the accelerator here. None of them is initialised."""
    if kind == "cpu" or kind != _kind():
        return ()
    return tuple(torch.device(kind, index) for index in range(torch.accelerator.device_count()))


def all_accelerators() -> tuple[torch.device, ...]:
    """Every device besides the CPU that torch sees, without one being initialised."""
    kind = _kind()
    return every_device(kind) if kind is not None else ()


def exists(kind: str) -> bool:
    """A device of this type can be used here."""
    return kind == "cpu" or bool(every_device(kind))


def pick_device(name: str) -> torch.device:
    """The device for "auto" (the accelerator, else the CPU), "cpu", a type ("cuda", "mps", "xpu",
    …) or one of several ("cuda:1").

    Raises `UsageError`, which lists what is there, for any other. A run on the CPU leaves the
    accelerator alone.
    """
    device = _checked(name)
    if device.type != "cpu" and device.index is None:
        return current() or device
    return device


def device_before_import(name: str) -> torch.device:
    """`pick_device` while the user's file is not imported yet, which initialises nothing: the file
    may choose devices by the environment, or bring a type of device with it (torch_npu does). A
    type that torch does not know is taken for the CPU until then."""
    try:
        torch.device("cpu" if name == "auto" else name)
    except RuntimeError:
        return torch.device("cpu")
    return _checked(name)


def device_of(model: torch.nn.Module, name: str) -> torch.device:
    """`pick_device`; "auto" is the accelerator that the training's own code has put the model on,
    if any.

    Raises `UsageError` where the code has spread the model over several devices, the CPU may be one
    of them, and another is asked for: it moves what goes between them itself.
    """
    devices = list(dict.fromkeys(p.device for p in model.parameters() if p.device.type != "meta"))
    placed = next((device for device in devices if device.type != "cpu"), None)
    if placed is None or (len(devices) == 1 and name != "auto"):
        return pick_device(name)
    if len(devices) > 1 and name not in ("auto", placed.type, str(placed)):
        raise UsageError(
            f"--device {name}: the recipe places its model on {', '.join(map(str, devices))} and "
            "moves tensors between them itself; omit --device"
        )
    return placed


def _checked(name: str) -> torch.device:
    kind = _kind()
    if name == "auto":
        return torch.device(kind or "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name!r} is not a torch device; {_there(kind)}") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != kind:
        raise UsageError(
            f"--device {name}: this torch ({torch.__version__}) sees no such device; {_there(kind)}"
        )
    if device.index is not None and device.index >= torch.accelerator.device_count():
        raise UsageError(
            f"--device {name}: there is no device with index {device.index}; {_there(kind)}"
        )
    return device


def _there(kind: str | None) -> str:
    if kind is None:
        return "available: cpu"
    count = torch.accelerator.device_count()
    names = [f"{kind}:{index}" for index in range(min(count, 4))] + (
        ["…", f"{kind}:{count - 1}"] if count > 4 else []
    )
    return f"available: cpu, {', '.join(names)}"


# -- what it is called and has ---------------------------------------------------------------------


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def device_name(device: torch.device) -> str | None:
    """What the maker calls it; None for the CPU, and where it has no name."""
    if device.type == "cpu":
        return None
    with contextlib.suppress(*_NO_ANSWER):
        return str(_module(device).get_device_name(device))
    return None


def synchronize(device: torch.device) -> None:
    """Waits until the device is through with what was queued; nothing to wait for on the CPU, nor
    on the meta device, which torch's builds with an accelerator refuse."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def empty_cache(device: torch.device) -> None:
    """Gives back what the device's allocator keeps for later, where it has such a cache."""
    if device.type != "cpu":
        with contextlib.suppress(*_NO_ANSWER):
            torch.accelerator.empty_cache()


def memory_info(device: torch.device) -> tuple[int, int] | None:
    """(free, total) bytes of a device's memory; None for the CPU, and where the device doesn't
    tell."""
    if device.type == "cpu":
        return None
    for ask in (
        lambda: torch.accelerator.get_memory_info(device),
        lambda: _module(device).mem_get_info(device),
    ):
        with contextlib.suppress(*_NO_ANSWER):
            free, total = ask()
            return int(free), int(total)
    # Apple's GPUs share the host's memory, and recommend a share of it
    with contextlib.suppress(*_NO_ANSWER):
        module = _module(device)
        total = int(module.recommended_max_memory())
        return max(total - int(module.driver_allocated_memory()), 0), total
    return None


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that tensors took on the device so far; None for the CPU, and where its
    allocator keeps no statistics."""
    if device.type == "cpu":
        return None
    for ask in (
        lambda: torch.accelerator.max_memory_allocated(device),
        lambda: _module(device).max_memory_allocated(device),
    ):
        with contextlib.suppress(*_NO_ANSWER):
            return int(ask())
    return None


@cache  # of the device: this is asked at every step, and tried once, without waiting for the device
def widest(device: torch.device) -> torch.dtype:
    """float64 where tensors of the device can hold it, else float32: what sums of many numbers are
    kept in."""
    # Intel's, where it holds doubles and can't calculate with them
    if device.type != "cpu" and getattr(_properties(device), "has_fp64", True) is False:
        return torch.float32
    try:
        torch.empty(1, dtype=torch.float64, device=device)
    except torch.OutOfMemoryError:  # says nothing of the dtype
        return torch.float64
    except (RuntimeError, TypeError):  # MPS raises a TypeError
        return torch.float32
    return torch.float64


@cache
def has_float64(device: torch.device) -> bool:
    """The device holds doubles and calculates with them. Apple's GPUs refuse to hold them, some of
    Intel's to calculate with them."""
    if widest(device) != torch.float64:
        return False
    try:
        return float((torch.ones(1, dtype=torch.float64, device=device) + 1).sum()) == 2.0
    except RuntimeError:  # what a kernel that is not there raises
        return False


def _properties(device: torch.device) -> Any:
    with contextlib.suppress(*_NO_ANSWER):
        return _module(device).get_device_properties(device)
    return None


def in_widest(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, or in float32 where its device has no float64."""
    return tensor.to(widest(tensor.device))


# -- random states ---------------------------------------------------------------------------------


def random_states(devices: Iterable[torch.device]) -> dict[torch.device, torch.Tensor]:
    """The random state of each device whose module keeps one; the tensors are on the host, and no
    device is waited for."""
    found = {}
    for device in devices:
        with contextlib.suppress(*_NO_ANSWER):
            found[device] = _module(device).get_rng_state(device)
    return found


def set_random_state(device: torch.device, state: torch.Tensor) -> None:
    """Puts a state of `random_states` back; nothing happens where this device is not there. Raises
    what its generator says of a state that it does not take."""
    if device in every_device(device.type) and hasattr(_module(device), "set_rng_state"):
        _module(device).set_rng_state(state, device)
