"""One step of the run's past: what running it again needs, besides the weights."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.replay.optimizers import rate_of
from nanodoc.replay.rng import RandomState
from nanodoc.replay.step_state import BriefStep, StepState
from nanodoc.tensors.nested import tensors_in

_SAMPLED = 3  # tensors of a batch whose memory is compared
_FEW_BYTES = 32

Held = tuple[int, int, int, bool]
"""(address, bytes, a batch's own bytes on a device, shared with a loader's worker) of a piece of
memory: a slice keeps the whole, which on a device the training holds anyway."""


@dataclass(slots=True)
class PastStep:
    """What running one step of the past again needs, besides the weights."""

    step: int
    batches: list[Any]
    versions: list[int]
    rng: RandomState
    rates: list[list[float | torch.Tensor | None]]
    """Learning rates when the step began, by optimizer and group."""
    options: list[list[dict[str, Any]]] = field(default_factory=list)
    """The groups' other options: some schedules move the momentum, too."""
    samples: list[bytes] = field(default_factory=list)
    """A few bytes of the batch's tensors, since memory that NumPy writes to counts no versions."""
    held: list[Held] = field(default_factory=list)
    """Every piece of memory that the batches keep alive."""
    used: dict[int, list[float | None]] = field(default_factory=dict)
    """As `Observer.rates`: a loop may set them while the step runs."""
    drawn: list[Any] | None = None
    """What a script's step draws from outside of it, such as its batch by `next`; complete when the
    next step begins."""
    drawn_is_weighed: bool = False
    """What it drew is among `held`."""
    numbers: Mapping[str, Any] | None = None
    """As `StepState.numbers`."""
    indices: Sequence[int] | None = None
    """Those of its samples in the data set, where they are known."""
    cleared: bool = False
    """No gradient was left when the step began: a loop may clear them behind its optimizer's step,
    where a step that is run again has ended."""

    @property
    def intact(self) -> bool:
        """Nobody has written into the batches since, as far as can be told."""
        leaves = tensors_in(self.batches)
        same = self.versions == [0 if t.is_inference() else t._version for t in leaves]
        return same and self.samples == [some_bytes(t) for t in leaves[:_SAMPLED]]


class KnownMemory:
    """A cache of what tensors hold and begin with, for as long as nobody writes to them: one batch,
    or one data set, may be that of many steps."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[torch.Tensor, Held]] = {}
        self._samples: dict[int, tuple[torch.Tensor, bytes]] = {}

    def held(self, leaves: Sequence[torch.Tensor]) -> list[Held]:
        """As `PastStep.held`."""
        known, found = self._held, []
        for tensor in leaves:
            look = known.get(id(tensor))
            if look is None:
                # the tensor is held, so that its identity stays its own
                look = known[id(tensor)] = tensor, held(tensor)
            found.append(look[1])
        return found

    def samples(self, leaves: Sequence[torch.Tensor]) -> list[bytes]:
        """As `PastStep.samples`."""
        known, found = self._samples, []
        for tensor in leaves[:_SAMPLED]:
            look = known.get(id(tensor))
            if look is None:
                look = known[id(tensor)] = tensor, some_bytes(tensor)
            found.append(look[1])
        return found


def past_of(
    start: StepState, optimizers: Sequence[torch.optim.Optimizer], indices: Sequence[int] | None
) -> PastStep:
    """Of a step that begins; `indices`: those of its samples in the data set."""
    return PastStep(
        start.step,
        start.batches,
        start.batch_versions,
        start.rng,
        [[_rate(group) for group in optimizer.param_groups] for optimizer in optimizers],
        [[_options(group) for group in optimizer.param_groups] for optimizer in optimizers],
        drawn=start.drawn,
        numbers=start.numbers,
        indices=indices,
        cleared=not any(g is not None and bool(g.any()) for g in start.grads or ()),
    )


def past_of_brief(step: BriefStep, before: tuple[BriefStep, PastStep] | None) -> PastStep:
    """Of a step that was watched by its losses alone; `before` is the one before it, which may have
    had the same groups."""
    if before is not None and before[0].groups is step.groups:
        rates, options = before[1].rates, before[1].options
    else:
        rates = [[rate_of(group) for group in groups] for groups in step.groups]
        options = [[_options(group) for group in groups] for groups in step.groups]
    return PastStep(
        step.step,
        step.batches,
        step.batch_versions,
        step.rng,
        rates,
        options,
        drawn=step.drawn,
        numbers=step.numbers,
        indices=step.indices,
        used=dict(step.rates),
        cleared=step.cleared,
    )


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in group.items()
        if type(value) in (int, float, bool, tuple) and key != "lr"
    }


def _rate(group: dict[str, Any]) -> float | torch.Tensor | None:
    """A learning rate as it is now; one on a device stays there, since reading it would wait for
    the device."""
    rate = group.get("lr")
    return (
        rate.detach().clone()
        if isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
        else rate_of(group)
    )


def held(tensor: torch.Tensor) -> Held:
    """What a tensor keeps alive."""
    on_device = 0 if tensor.is_cpu else tensor.numel() * tensor.element_size()
    try:
        storage = tensor.untyped_storage()
        shared = tensor.is_cpu and storage.is_shared()
        return storage.data_ptr() or id(tensor), storage.nbytes(), on_device, shared
    except (NotImplementedError, RuntimeError):  # sparse layouts have no storage of their own
        return id(tensor), tensor.numel() * tensor.element_size(), on_device, False


def some_bytes(tensor: torch.Tensor) -> bytes:
    """The first and the last few bytes; b"" for what is not plain host memory in one piece."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return b""
    size = tensor.nbytes
    if not size or not tensor.is_contiguous():
        return b""
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # no memory of its own
        return b""
    if not start:
        return b""
    if size <= 2 * _FEW_BYTES:
        return ctypes.string_at(start, size)
    few = _FEW_BYTES
    return ctypes.string_at(start, few) + ctypes.string_at(start + size - few, few)
