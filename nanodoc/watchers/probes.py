"""What `nanodoc.probe` saw: per call two numbers that stay on their device, and one flag a step
that travels with the vitals."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from nanodoc import probing
from nanodoc.facts.ops import ProbedFacts
from nanodoc.instrument.torch_private import DisableTorchDispatch, DisableTorchFunction
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch

_MOST = 4096  # calls kept of one step


class _Call(NamedTuple):
    label: str
    place: Place | None
    low: torch.Tensor
    high: torch.Tensor
    dtype: str
    shape: tuple[int, ...]


class ProbeWatch(Watch):
    """Hears of probes while `listening`; `flag` is to be read once a step, `facts` only when it
    says so."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self.heard = False
        """There was one."""

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        before = probing.listen(self._record)
        try:
            yield
        finally:
            probing.listen(before)

    def before_step(self, start: StepState) -> float:
        self._calls = []
        return 0.0

    def scalars(self, *, done: bool = False) -> list[torch.Tensor]:
        flag = self.flag()
        return [] if flag is None else [flag]

    def _record(self, tensor: Any, label: str) -> None:
        if (
            not isinstance(tensor, torch.Tensor)
            or not is_plain(tensor)
            or not tensor.is_floating_point()
            or not tensor.numel()
        ):
            return
        self.heard = True
        own, caller = calling_places(3)
        with DisableTorchDispatch(), DisableTorchFunction():
            values = tensor.detach()
            low, high = torch.aminmax(values.float() if values.element_size() == 1 else values)
        if len(self._calls) < _MOST:
            name = str(tensor.dtype).removeprefix("torch.")
            self._calls.append(
                _Call(str(label)[:200], caller or own, low, high, name, tuple(tensor.shape))
            )

    def flag(self) -> torch.Tensor | None:
        """A 0-dim tensor that is 1 if a probe of this step saw NaN or +inf, else 0; None without
        probes. −inf alone is what masks are made of and raises no flag."""
        if not self._calls:
            return None
        device = self._calls[0].high.device
        highs = torch.stack(
            [call.high.float().to(device, non_blocking=True) for call in self._calls]
        )
        return (~torch.isfinite(highs)).any().float()

    def seen(self) -> tuple[ProbedFacts, ...]:
        """Every probe of this step, in the order of the calls."""
        found = []
        for call in self._calls:
            low, high = float(call.low), float(call.high)
            span = resolved(call.place)
            found.append(
                ProbedFacts(
                    label=call.label,
                    location=span,
                    dtype=call.dtype,
                    shape=call.shape,
                    minimum=low,
                    maximum=high,
                    bad=not math.isfinite(high),
                )
            )
        return tuple(found)
