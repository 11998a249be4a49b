"""The order in which a train_step scales, differentiates, unscales, clips, steps and updates, judged call by call."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from nanodoc.amp_evidence import (
    BACKWARD_AFTER_UNSCALE,
    CLIPPED_SCALED,
    FRESH_SCALER,
    NEVER_SCALED,
    SCALE_DISCARDED,
    STEPPED_SCALED,
    UPDATE_BETWEEN,
    ScalerCall,
    ScalerMisuse,
)
from nanodoc.evidence import SourceSpan
from nanodoc.trace.spans import Place, resolve

_FRESH = 3  # train_steps in a row with a scaler of their own
_MOST_CALLS = 64
_MOST_VALUES = 256
Versions = list[tuple[int, int]]


class _Call(NamedTuple):
    kind: str
    step: int
    place: Place | None
    optimizer: int | None = None


class Gradients:
    """What the gradients of one optimizer are made of since they were cleared."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.backwards: list[tuple[bool | None, int, Place | None]] = []
        """(scaled, how often the scale had been updated, where) of every backward that added to them; None where it may have
        been scaled by hand."""
        self.unscaled_at: Place | None = None
        self.unscaled = False
        self.used = False

    @property
    def scaled(self) -> bool:
        """They are multiplied by the scale as they stand."""
        return not self.unscaled and any(scaled for scaled, _, _ in self.backwards)

    @property
    def scaled_at(self) -> Place | None:
        """The first backward of a scaled loss."""
        return next((place for scaled, _, place in self.backwards if scaled), None)

    def parameters(self) -> Iterator[torch.Tensor]:
        """The optimizer's parameters, none if it is gone."""
        optimizer = self._optimizer()
        for group in optimizer.param_groups if optimizer is not None else ():
            yield from group["params"]

    def versions(self) -> Versions:
        """Differs as soon as anything writes to a gradient or replaces it."""
        return [(id(p.grad), p.grad._version) if p.grad is not None else (0, 0) for p in self.parameters()]

    def clear(self) -> None:
        self.backwards, self.unscaled, self.unscaled_at, self.used = [], False, None, False


class _Misuse:
    """One kind of misuse at one place."""

    def __init__(self, kind: str, place: Place | None, other: Place | None, step: int) -> None:
        self.kind, self.place, self.other, self.first_step, self.steps = kind, place, other, step, 0
        self.last_step = -1
        self.values: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        """(norm or largest gradient, scale) as clipping saw them, still on their device."""
        self.limit: float | None = None
        self.clip = ""

    def worst(self) -> tuple[float | None, float | None]:
        """The largest finite norm that clipping saw, and the scale then."""
        best: tuple[float | None, float | None] = (None, None)
        for value, scale in self.values:
            number = float(value)
            if number - number == 0 and (best[0] is None or number > best[0]):
                best = (number, float(scale) if scale is not None else None)
        return best


class CallOrder:
    """Told of every call, in order; knows at the end which of them came at the wrong time."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._gradients = {id(one): Gradients(one) for one in optimizers}
        self._order = list(self._gradients)
        self._calls: list[_Call] = []
        self._earlier: list[_Call] = []
        self._misuses: dict[tuple[str, Any], _Misuse] = {}
        self._scale_calls: list[Place | None] = []
        self._read: dict[int, Versions] | None = None
        """The gradients as they were when the train_step last read the scale: it may scale or unscale with it by hand."""
        self._fresh = 0
        self.step = 0
        self.updates = 0
        self.scaler: Any = None
        """The GradScaler that was used last, whoever made it."""

    def begin(self, step: int) -> None:
        """A train_step is about to be called."""
        self.step = step
        self._earlier = (self._earlier + self._calls)[-_MOST_CALLS:]
        self._calls, self._scale_calls, self._read = [], [], None

    def end(self, made_at: Place | None) -> None:
        """The train_step has returned; `made_at` is where it made a GradScaler, if it did."""
        if made_at is None or not self._scale_calls:
            self._fresh = 0
            return
        self._fresh += 1
        if self._fresh >= _FRESH:
            self._misused(FRESH_SCALER, made_at, None).steps = self._fresh

    # -- the calls -------------------------------------------------------------------------------------------------------

    def scale(self, scaler: Any, place: Place | None) -> None:
        self.scaler = scaler
        self._scale_calls.append(place)
        self._calls.append(_Call("scale", self.step, place))

    def scale_read(self) -> None:
        self._read = {key: gradients.versions() for key, gradients in self._gradients.items()}

    def before_backward(self) -> dict[int, Versions] | None:
        """What tells whose gradients a backward adds to; with one optimizer there is no question."""
        if len(self._gradients) < 2:
            return None
        return {key: gradients.versions() for key, gradients in self._gradients.items()}

    def backward(self, place: Place | None, before: dict[int, Versions] | None, *, scaled: bool) -> None:
        known = scaled or (None if self._read is not None else False)
        self._calls.append(_Call("backward", self.step, place))
        for key, gradients in list(self._gradients.items()):
            if before is not None and gradients.versions() == before.get(key):
                continue
            if gradients.used:
                gradients.clear()
            if gradients.unscaled and known:
                self._misused(BACKWARD_AFTER_UNSCALE, place, gradients.unscaled_at)
            gradients.backwards.append((known, self.updates, place))

    def called(self, kind: str, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        """unscale_() or step() is called; whether it goes well is not known yet."""
        self._calls.append(_Call(kind, self.step, place, self.position(optimizer)))

    def unscaled(self, scaler: Any, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self.scaler = scaler
        gradients = self._of(optimizer)
        self._check_scaled(gradients, place)
        gradients.unscaled, gradients.unscaled_at = True, place

    def stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self.scaler = scaler
        gradients = self._of(optimizer)
        if not gradients.unscaled:
            self._check_scaled(gradients, place)
        gradients.used = True

    def stepped_by_itself(self, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self._calls.append(_Call("direct-step", self.step, place, self.position(optimizer)))
        gradients = self._of(optimizer)
        if gradients.scaled and not gradients.used and not self._unscaled_by_hand(gradients):
            self._misused(STEPPED_SCALED, place, gradients.scaled_at)
        gradients.used = True

    def update(self, place: Place | None) -> None:
        self._calls.append(_Call("update", self.step, place))

    def cleared(self, optimizer: torch.optim.Optimizer) -> None:
        self._of(optimizer).clear()

    def module_cleared(self, parameters: Iterable[torch.Tensor]) -> None:
        gone = {id(p) for p in parameters}
        for gradients in self._gradients.values():
            if all(id(p) in gone for p in gradients.parameters()):
                gradients.clear()

    def clipped(self, grads: Iterable[torch.Tensor], how: str, value: torch.Tensor, limit: float, place: Place | None) -> None:
        """Gradients are about to be clipped to `limit`; `value` is their norm or their largest element."""
        self._calls.append(_Call("clip", self.step, place))
        if self.scaler is None:
            return
        clipped = {id(grad) for grad in grads}
        for gradients in self._gradients.values():
            if not gradients.scaled or gradients.used or not any(id(p.grad) in clipped for p in gradients.parameters()):
                continue
            if self._unscaled_by_hand(gradients):
                continue
            misuse = self._misused(CLIPPED_SCALED, place, gradients.scaled_at)
            misuse.limit, misuse.clip = limit, how
            scale = getattr(self.scaler, "_scale", None)
            if len(misuse.values) < _MOST_VALUES:
                misuse.values.append((value.detach(), scale.detach().clone() if isinstance(scale, torch.Tensor) else None))
            return

    def clipped_by_hand(self, place: Place, step: int) -> None:
        """A clip of scaled gradients that the traced step showed."""
        misuse = self._misuses.setdefault((CLIPPED_SCALED, place), _Misuse(CLIPPED_SCALED, place, None, step))
        misuse.clip, misuse.steps = "written by hand", max(1, misuse.steps)

    @property
    def still_scaled(self) -> bool:
        """Some gradients are multiplied by the scale as they stand, and no optimizer has used them yet."""
        return any(gradients.scaled and not gradients.used for gradients in self._gradients.values())

    # -- judging ---------------------------------------------------------------------------------------------------------

    def _check_scaled(self, gradients: Gradients, place: Place | None) -> None:
        """The gradients are about to be divided by the scale."""
        if gradients.used or not gradients.backwards:
            return
        plain = [where for scaled, _, where in gradients.backwards if scaled is False]
        if plain and len(plain) == len(gradients.backwards) and self._scale_calls:
            self._misused(SCALE_DISCARDED, plain[0], self._scale_calls[0])
        elif plain:
            self._misused(NEVER_SCALED, plain[0], place)
        stale = [where for scaled, updates, where in gradients.backwards if scaled and updates < self.updates]
        if stale:
            update = next((call.place for call in reversed(self._calls) if call.kind == "update"), None)
            self._misused(UPDATE_BETWEEN, update or place, stale[0])

    def _unscaled_by_hand(self, gradients: Gradients) -> bool:
        """The train_step has read the scale and written to the gradients since."""
        key = next((key for key, one in self._gradients.items() if one is gradients), None)
        return self._read is not None and key is not None and gradients.versions() != self._read.get(key)

    def _misused(self, kind: str, place: Place | None, other: Place | None) -> _Misuse:
        key = (kind, place)
        misuse = self._misuses.get(key)
        if misuse is None:
            misuse = self._misuses[key] = _Misuse(kind, place, other, self.step)
        if misuse.last_step != self.step:
            misuse.last_step = self.step
            misuse.steps += 1
        return misuse

    def _of(self, optimizer: torch.optim.Optimizer) -> Gradients:
        if id(optimizer) not in self._gradients:
            self._gradients[id(optimizer)] = Gradients(optimizer)
            self._order.append(id(optimizer))
        return self._gradients[id(optimizer)]

    def position(self, optimizer: torch.optim.Optimizer) -> int:
        """The optimizer's number, in the recipe's order and then as they were met."""
        self._of(optimizer)
        return self._order.index(id(optimizer))

    # -- what is known at the end ----------------------------------------------------------------------------------------

    def misuses(self) -> tuple[ScalerMisuse, ...]:
        """Every misuse with its numbers. Clipping that left the gradients as they were is none, and one update in between may be
        chance."""
        found = []
        for misuse in self._misuses.values():
            norm, scale = misuse.worst()
            if misuse.clip in ("norm", "value") and (norm is None or misuse.limit is None or not norm > misuse.limit):
                continue
            if misuse.kind == UPDATE_BETWEEN and misuse.steps < 2:
                continue
            found.append(
                ScalerMisuse(
                    kind=misuse.kind, place=_span(misuse.place), other=_span(misuse.other), first_step=misuse.first_step, steps=misuse.steps,
                    scale=scale if scale is not None else self._scale_now(), norm=norm, limit=misuse.limit, clip=misuse.clip,
                )
            )  # fmt: skip
        return tuple(found)

    def calls(self) -> tuple[ScalerCall, ...]:
        """The latest calls, those of the last train_step at the end."""
        latest = (self._earlier + self._calls)[-_MOST_CALLS:]
        return tuple(ScalerCall(kind=call.kind, step=call.step, place=_span(call.place), optimizer=call.optimizer) for call in latest)

    def _scale_now(self) -> float | None:
        scale = getattr(self.scaler, "_scale", None)
        return float(scale) if isinstance(scale, torch.Tensor) else None


def _span(place: Place | None) -> SourceSpan | None:
    return resolve(*place) if place is not None else None
