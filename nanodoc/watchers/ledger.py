"""The ledger of a run: everything of a model that has a name, before the first step, at some steps
and at the end. What ran away."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from itertools import pairwise

import torch

from nanodoc.examination.lines_that import LineThatWrites
from nanodoc.facts.loop import GrownFacts
from nanodoc.instrument.torch_private import DisableTorchFunction, NormBase
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_plain, without_values

_APART = 1.5  # times the step of one entry is that of the next
_RAN_AWAY = 1e3  # times the first norm
_LATE = 10.0
"""Times the norm in the middle of the run: a sum or a counter doubles, what settles does not
grow."""
_LARGE = 10.0
"""The size of a weight's values: those of layers that compute are below 1."""
_LATE_WEIGHTS = 4.0
_SMALLEST = 1e-3  # a first size below it is no size: values that data replace

_Named = tuple[str, torch.Tensor, torch.Tensor, bool]
"""Name, values now, values before the first step, whether it is a buffer."""


class Ledger:
    """The norms of a model's parameters and buffers at some of its steps. They stay on their
    device until the run is over."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._names: list[str] = []
        self._rows: list[tuple[int, torch.Tensor]] = []
        self._next = 0

    def note(self, step: int) -> None:
        """A step is over."""
        if step < self._next:
            return
        self._next = int(_APART * step) + 1
        with contextlib.suppress(RuntimeError), torch.no_grad(), DisableTorchFunction():
            named = list(_measured(self._model))
            norms = [torch.linalg.vector_norm(t.detach(), dtype=torch.float32) for _, t in named]
            if norms and all(norm.device == norms[0].device for norm in norms):
                names = [name for name, _ in named]
                self._rows = self._rows if names == self._names else []  # a net that grew
                self._names = names
                self._rows.append((step, torch.stack(norms)))

    def still_since(self) -> dict[str, int]:
        """Of parameters and buffers whose norm stayed bitwise the same up to now: since when, by
        the steps that were looked at."""
        now = dict(_measured(self._model))
        if not self._rows or list(now) != self._names:
            return {}
        with torch.no_grad(), DisableTorchFunction():
            norms = [
                torch.linalg.vector_norm(t.detach(), dtype=torch.float32) for t in now.values()
            ]
            rows: list[list[float]] = torch.stack([row for _, row in self._rows]).tolist()
            last: list[float] = torch.stack(norms).tolist()
        steps = [step for step, _ in self._rows]
        found: dict[str, int] = {}
        for name, end, *course in zip(self._names, last, *rows, strict=True):
            for step, norm in zip(reversed(steps), reversed(course), strict=True):
                if norm != end:
                    break
                found[name] = step
        return found

    def grown(self, first: StepState | None) -> tuple[GrownFacts, ...]:
        """Buffers that grew a thousandfold, and in a jump or more and more. Weights that grew as
        far, are large and grow on. `first`: the start of the run, with its weights."""
        if first is None or len(self._rows) < 2:
            return ()
        last = self._rows[-1][0]
        middle = max((i for i, (step, _) in enumerate(self._rows) if 2 * step <= last), default=0)
        rows: list[list[float]] = torch.stack([row for _, row in self._rows]).tolist()
        courses = dict(zip(self._names, zip(*rows, strict=True), strict=True))
        found = []
        with torch.no_grad():
            for name, now, was, buffer in _pairs(self._model, first):
                sizes = courses.get(name, ())
                count = math.sqrt(now.numel())
                before, after = _norm(was), _norm(now)
                finite = all(map(math.isfinite, (before, after, *sizes)))
                if not (sizes and finite and before > _SMALLEST * count):
                    continue
                one = GrownFacts(
                    name=name,
                    buffer=buffer,
                    times=after / before,
                    late=after / sizes[middle] if sizes[middle] > 0 else 0.0,
                    jump=max(b / a if a > 0 else 0.0 for a, b in pairwise((*sizes, after))),
                    size=after / count,
                )
                if _ran_away(one):
                    found.append(one)
        return tuple(sorted(found, key=lambda one: -one.times))


def _ran_away(one: GrownFacts) -> bool:
    if one.times < _RAN_AWAY:
        return False
    if one.buffer:
        return one.late >= _LATE or one.jump >= _RAN_AWAY
    return one.late >= _LATE_WEIGHTS and one.size >= _LARGE


def _norm(tensor: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor.detach(), dtype=torch.float32))


def _measured(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Running statistics of normalisation layers follow their inputs, and are left out."""
    yield from (named for named in model.named_parameters() if _is_measured(named[1]))
    for name, module in model.named_modules():
        for own, buffer in module._buffers.items():
            if buffer is not None and _is_measured(buffer) and not isinstance(module, NormBase):
                yield f"{name}.{own}".lstrip("."), buffer


def weights_grew(model: torch.nn.Module, first: StepState | None) -> float | None:
    """As `RunStatistics`."""
    if first is None:
        return None
    before = after = 0.0
    with torch.no_grad():
        for _, now, was, buffer in _pairs(model, first):
            if not buffer and now.requires_grad:
                before, after = math.hypot(before, _norm(was)), math.hypot(after, _norm(now))
    return after / before if before > 0 and math.isfinite(after) else None


def writer_of(model: torch.nn.Module, first: StepState, name: str) -> LineThatWrites | None:
    """Finds the line that writes where this parameter or buffer has changed most."""
    found = next((one for one in _pairs(model, first) if one[0] == name), None)
    if found is None:
        return None
    with torch.no_grad():
        changed = found[1].detach().float() - found[2].to(found[1].device).float()
        place = int(changed.abs().argmax())

    def value() -> float:
        now = dict((*model.named_parameters(), *model.named_buffers()))[name]
        return float(now.detach().reshape(-1)[place])

    return LineThatWrites(value)


def _pairs(model: torch.nn.Module, first: StepState) -> Iterator[_Named]:
    for (name, weight), was in zip(model.named_parameters(), first.weights or (), strict=False):
        if was is not None and _alike(weight, was):
            yield name, weight, was, False
    names = {id(module): name for name, module in model.named_modules()}
    for module, own, _, was in first.buffers:
        now = module._buffers.get(own)
        if now is None or was is None or isinstance(module, NormBase) or not _alike(now, was):
            continue
        if id(module) in names:
            yield f"{names[id(module)]}.{own}".lstrip("."), now, was, True


def _alike(now: torch.Tensor, was: torch.Tensor) -> bool:
    return _is_measured(now) and now.shape == was.shape


def _is_measured(tensor: torch.Tensor) -> bool:
    plain = tensor.is_floating_point() and tensor.itemsize > 1 and not without_values(tensor)
    return plain and is_plain(tensor) and tensor.numel() > 0
