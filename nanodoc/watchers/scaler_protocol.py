"""The order in which a train_step scales, differentiates, unscales, clips, steps and updates,
judged call by call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from nanodoc.facts.amp import (
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
from nanodoc.trace.spans import Place, resolved
from nanodoc.watchers.scaled_gradients import Backward, Gradients, Versions

_ONCE = 3  # steps after the first
_WITHOUT_SCALER = 3  # steps
_FRESH = 3  # train_steps in a row with a scaler of their own
_MOST_CALLS = 64
_MOST_VALUES = 256
_MOST_SCALERS = 8


class _Call(NamedTuple):
    kind: str
    step: int
    place: Place | None
    optimizer: int | None = None


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


class ScalerProtocol:
    """Told of every call, in order; knows at the end which of them came at the wrong time."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        self._gradients: dict[int, Gradients] = {}
        self._calls: list[_Call] = []
        self._earlier: list[_Call] = []
        self._misuses: dict[tuple[str, Any], _Misuse] = {}
        self._scale_calls: list[Place | None] = []
        self._scale_known = False
        """The train_step has read the scale since its last backward: it may scale, unscale or clip
        with it by hand."""
        self._unknown = False
        """It has scaled something that can't be followed."""
        self._fresh = 0
        self._updates: dict[int, int] = {}
        self.step = 0
        self.scaler: Any = None
        """The GradScaler that was used last, whoever made it."""
        self.scalers: dict[int, Any] = {}
        """Every GradScaler that was used, the last few where a train_step makes its own."""
        for optimizer in optimizers:
            self._of(optimizer)

    def begin(self, step: int) -> None:
        """A train_step is about to be called."""
        self.step = step
        self._earlier = (self._earlier + self._calls)[-_MOST_CALLS:]
        self._calls, self._scale_calls, self._unknown = [], [], False

    def end(self, made_at: Place | None) -> None:
        """The train_step has returned; `made_at` is where it made a GradScaler, if it did."""
        if made_at is None or not self._scale_calls:
            self._fresh = 0
            return
        self._fresh += 1
        if self._fresh >= _FRESH:
            self._misused(FRESH_SCALER, made_at, None).steps = self._fresh

    # -- the calls ---------------------------------------------------------------------------------

    def scale(self, scaler: Any, place: Place | None, *, known: bool) -> None:
        """`known` is False where what is scaled can't be marked: a generator, scaled as it is
        used."""
        self._use(scaler)
        self._unknown |= not known
        self._scale_calls.append(place)
        self._calls.append(_Call("scale", self.step, place))

    def scale_read(self) -> None:
        self._scale_known = True

    def before_backward(self) -> dict[int, Versions]:
        """What tells whose gradients a backward adds to. Forgets what gradients were made of that
        are gone since."""
        found = {}
        for gradients in self._followed():
            versions = gradients.versions()
            found[id(gradients)] = versions
            doubtful = gradients.unscaled or any(
                backward.updates < self._updates.get(backward.scaler, 0)
                for backward in gradients.backwards
            )
            if gradients.backwards and (
                not any(identity for identity, _ in versions) or (doubtful and gradients.are_gone())
            ):
                gradients.clear()
        return found

    def backward(
        self, place: Place | None, before: dict[int, Versions], scaler: int | None, *, given: bool
    ) -> None:
        """`scaler` is the one that scaled the loss, None if none did; `given` that the caller has
        handed in gradients of its own."""
        hand = self._scale_known or self._unknown or given
        scaled = True if scaler is not None else None if hand else False
        self._scale_known = False
        self._calls.append(_Call("backward", self.step, place))
        for gradients in self._followed():
            versions = gradients.versions()
            if versions == before.get(id(gradients)):
                continue
            if gradients.used:
                gradients.clear()
            if gradients.unscaled and scaled:
                self._misused(BACKWARD_AFTER_UNSCALE, place, gradients.unscaled_at)
            gradients.backwards.append(
                Backward(scaled, scaler or 0, self._updates.get(scaler or 0, 0), place)
            )
            gradients.left = versions

    def called(self, kind: str, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        """unscale_() or step() is called; whether it goes well is not known yet."""
        self._calls.append(_Call(kind, self.step, place, self.position(optimizer)))

    def unscaled(self, scaler: Any, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self._use(scaler)
        gradients = self._of(optimizer)
        self._check_scaled(gradients, place)
        gradients.unscaled, gradients.unscaled_at = True, place

    def stepped(self, scaler: Any, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self._use(scaler)
        gradients = self._of(optimizer)
        if not gradients.unscaled:
            self._check_scaled(gradients, place)
        gradients.used = True

    def stepped_by_itself(self, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self._calls.append(_Call("direct-step", self.step, place, self.position(optimizer)))
        gradients = self._of(optimizer)
        if gradients.scaled and not gradients.used and not gradients.rewritten:
            self._misused(STEPPED_SCALED, place, gradients.scaled_at)
        gradients.used = True

    def update(self, scaler: Any, place: Place | None) -> None:
        self._calls.append(_Call("update", self.step, place))
        if scaler is not None:
            self._updates[id(scaler)] = self._updates.get(id(scaler), 0) + 1

    def cleared(self, optimizer: torch.optim.Optimizer) -> None:
        self._of(optimizer).clear()

    def module_cleared(self, parameters: Iterable[torch.Tensor]) -> None:
        gone = {id(p) for p in parameters}
        for gradients in self._all():
            if all(id(p) in gone for p in gradients.parameters()):
                gradients.clear()

    def clipped(
        self,
        grads: Iterable[torch.Tensor],
        how: str,
        value: torch.Tensor,
        limit: float,
        place: Place | None,
    ) -> None:
        """Gradients are about to be clipped to `limit`; `value` is their norm or their largest
        element."""
        self._calls.append(_Call("clip", self.step, place))
        if self.scaler is None or self._scale_known:  # a limit may be multiplied by the scale too
            return
        clipped = {id(grad) for grad in grads}
        for gradients in self._all():
            if (
                not gradients.scaled
                or gradients.used
                or gradients.rewritten
                or not any(id(p.grad) in clipped for p in gradients.parameters())
            ):
                continue
            misuse = self._misused(CLIPPED_SCALED, place, gradients.scaled_at)
            misuse.limit, misuse.clip = limit, how
            scale = getattr(self.scaler, "_scale", None)
            if len(misuse.values) < _MOST_VALUES:
                misuse.values.append(
                    (
                        value.detach(),
                        scale.detach().clone() if isinstance(scale, torch.Tensor) else None,
                    )
                )
            return

    def after_clip(self, before: list[tuple[Gradients, bool]]) -> None:
        """torch's own clipping has written to the gradients, and nobody else since `before` was
        asked for."""
        for gradients, untouched in before:
            if untouched:
                gradients.left = gradients.versions()

    def untouched(self) -> list[tuple[Gradients, bool]]:
        """Which gradients nobody has written to since their backward."""
        return [
            (gradients, bool(gradients.backwards) and not gradients.rewritten)
            for gradients in self._all()
        ]

    def clipped_by_hand(self, place: Place, step: int) -> None:
        """A clip of scaled gradients that the traced step showed."""
        misuse = self._misuses.setdefault(
            (CLIPPED_SCALED, place), _Misuse(CLIPPED_SCALED, place, None, step)
        )
        misuse.clip, misuse.steps = "written by hand", max(1, misuse.steps)

    @property
    def still_scaled(self) -> bool:
        """Some gradients are multiplied by the scale as they stand, and no optimizer has used them
        yet."""
        return any(gradients.scaled and not gradients.used for gradients in self._all())

    # -- judging -----------------------------------------------------------------------------------

    def _check_scaled(self, gradients: Gradients, place: Place | None) -> None:
        """The gradients are about to be divided by the scale. Where nothing was scaled in this
        train_step, somebody may have done it by hand."""
        if gradients.used or not gradients.backwards:
            return
        plain = [backward.place for backward in gradients.backwards if backward.scaled is False]
        if (
            plain
            and len(plain) == len(gradients.backwards)
            and self._scale_calls
            and not self._scaled_elsewhere(gradients)
        ):
            self._misused(SCALE_DISCARDED, plain[0], self._scale_calls[0])
        elif plain and self._scale_calls:
            self._misused(NEVER_SCALED, plain[0], place)
        stale = [
            backward.place
            for backward in gradients.backwards
            if backward.scaled and backward.updates < self._updates.get(backward.scaler, 0)
        ]
        if stale:
            update = next(
                (call.place for call in reversed(self._calls) if call.kind == "update"), None
            )
            self._misused(UPDATE_BETWEEN, update or place, stale[0])

    def _scaled_elsewhere(self, gradients: Gradients) -> bool:
        """What this train_step scaled was differentiated, for other parameters."""
        return any(
            backward.scaled
            for elsewhere in self._all()
            if elsewhere is not gradients
            for backward in elsewhere.backwards
        )

    def _misused(self, kind: str, place: Place | None, other: Place | None) -> _Misuse:
        key = (kind, place)
        misuse = self._misuses.get(key)
        if misuse is None:
            misuse = self._misuses[key] = _Misuse(kind, place, other, self.step)
        if misuse.last_step != self.step:
            misuse.last_step = self.step
            misuse.steps += 1
        return misuse

    def _use(self, scaler: Any) -> None:
        self.scaler = scaler
        if id(scaler) not in self.scalers and len(self.scalers) < _MOST_SCALERS:
            self.scalers[id(scaler)] = scaler

    def _followed(self) -> list[Gradients]:
        """Those whose backwards matter: none where the first steps have used no scaler, until one
        is used."""
        return self._all() if self.scalers or self.step < _WITHOUT_SCALER else []

    def _all(self) -> list[Gradients]:
        return list(dict.fromkeys(self._gradients.values()))

    def _of(self, optimizer: Any) -> Gradients:
        known = self._gradients.get(id(optimizer))
        if known is None:
            own = {
                id(p) for group in getattr(optimizer, "param_groups", ()) for p in group["params"]
            }
            known = next(
                (met for met in self._all() if any(id(p) in own for p in met.parameters())), None
            ) or Gradients(optimizer)
            self._gradients[id(optimizer)] = known
        return known

    def position(self, optimizer: Any) -> int:
        """The number of the optimizer's gradients, in the recipe's order and then as they were
        met."""
        gradients = self._of(optimizer)  # which may be met here for the first time
        return self._all().index(gradients)

    # -- what is known at the end ------------------------------------------------------------------

    def misuses(self) -> tuple[ScalerMisuse, ...]:
        """Every misuse with its numbers. Clipping that left the gradients as they were is none;
        what a loop does wrong it does again, so something seen once in a longer run is none either.
        """
        found = []
        for misuse in self._misuses.values():
            norm, scale = misuse.worst()
            if misuse.clip in ("norm", "value") and (
                norm is None or misuse.limit is None or not norm > misuse.limit
            ):
                continue
            traced = misuse.clip == "written by hand"  # seen in the one step that was traced
            if (
                misuse.steps < 2
                and not traced
                and (misuse.kind == UPDATE_BETWEEN or self.step >= _ONCE)
            ):
                continue
            found.append(
                ScalerMisuse(
                    kind=misuse.kind,
                    place=resolved(misuse.place),
                    other=resolved(misuse.other),
                    first_step=misuse.first_step,
                    steps=misuse.steps,
                    scale=scale if scale is not None else self._scale_now(),
                    norm=norm,
                    limit=misuse.limit,
                    clip=misuse.clip,
                )
            )
        return tuple(found)

    def calls(self) -> tuple[ScalerCall, ...]:
        """The latest calls, those of the last train_step at the end."""
        latest = (self._earlier + self._calls)[-_MOST_CALLS:]
        return tuple(
            ScalerCall(
                kind=call.kind, step=call.step, place=resolved(call.place), optimizer=call.optimizer
            )
            for call in latest
        )

    def _scale_now(self) -> float | None:
        scale = getattr(self.scaler, "_scale", None)
        return float(scale) if isinstance(scale, torch.Tensor) else None
