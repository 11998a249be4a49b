"""The vital signs of one call of the user's train_step: read when its optimizer steps, and again at
its end only if need be."""

from __future__ import annotations

import math
from typing import Any

import torch

from nanodoc.measure.gradients import Vitals, packed_vitals
from nanodoc.measure.scaler import ScalerReading
from nanodoc.replay.observer import Observer
from nanodoc.watch.amp import AmpWatch
from nanodoc.watch.probes import SpotWatch


class ObservedStep:
    """What `observer` and the GradScaler's watch read during one train_step."""

    def __init__(self, observer: Observer, amp: AmpWatch, spots: SpotWatch) -> None:
        self._observer = observer
        self._amp = amp
        self._spots = spots
        self.probed_bad = False
        """A probe of this step saw NaN or +inf."""
        self._unscaled: list[torch.Tensor] = []
        self._flagged = False
        self.reading: ScalerReading | None = None
        """The scaler tensors that were read last; their values are the first of the vitals'
        `extras`."""
        observer.extras = self._extras
        observer.on_fused_skip = amp.calls.skipped_inside

    def _extras(self, *, done: bool = False) -> list[torch.Tensor]:
        self.reading = self._amp.reading(done=done) or self.reading
        self._unscaled = [loss for loss in self._amp.calls.unscaled if loss.numel() == 1]
        flag = self._spots.flag()
        self._flagged = flag is not None
        return [
            *(self.reading.tensors if self.reading else ()),
            *self._unscaled,
            *((flag,) if flag is not None else ()),
        ]

    def _losses(self, vitals: Vitals) -> tuple[float, ...]:
        """The unscaled losses among the extras that were read last."""
        end = len(vitals.extras) - self._flagged
        return vitals.extras[end - len(self._unscaled) : end]

    def vitals(
        self, result: Any, named: list[tuple[str, torch.nn.Parameter]]
    ) -> tuple[Vitals, Vitals]:
        """(over all its optimizer steps, at its end). `result` is what the train_step returned."""
        observer = self._observer
        final = self._known(result)
        if final is None:
            returned = [result.detach()] if _is_scalar(result) else []
            losses = returned or observer.losses[-1:]
            final = packed_vitals(losses, [] if observer.vitals else named, self._extras(done=True))
            if not returned and self._unscaled and math.isfinite(final.loss):
                final = final.with_loss(self._losses(final)[-1])
            if (
                not observer.vitals
                and self.reading is not None
                and self._amp.calls.order.still_scaled
            ):
                # a micro-batch of several: the optimizer will step later
                final = final.unscaled(final.extras[0])
        self.probed_bad = any(
            self._flagged and v.extras and v.extras[-1] for v in (*observer.vitals[-1:], final)
        )
        if not observer.vitals:
            return final, final
        total = Vitals(
            loss=final.loss,
            grad_norm=math.hypot(*(v.grad_norm for v in observer.vitals)),
            norms=tuple(n for v in observer.vitals for n in v.norms),
            names=tuple(n for v in observer.vitals for n in v.names),
            extras=final.extras,
        )
        return total, final

    def _known(self, result: Any) -> Vitals | None:
        """The vitals read before the optimizer stepped, where they hold what the train_step
        returned: nothing is left to read."""
        observer = self._observer
        if len(observer.vitals) != 1 or (self._amp.calls.left_out and self._amp.calls.taken):
            return None
        vitals = observer.vitals[0]
        if isinstance(result, float):
            return vitals.with_loss(result) if math.isfinite(vitals.loss) else vitals
        if not _is_scalar(result):
            return None
        if len(observer.losses) == 1 and result.data_ptr() == observer.losses[0].data_ptr():
            return vitals
        for loss, value in zip(self._unscaled, self._losses(vitals), strict=True):
            if result.data_ptr() == loss.data_ptr():
                return vitals.with_loss(value) if math.isfinite(vitals.loss) else vitals
        return None


def _is_scalar(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.numel() == 1 and not result.is_complex()
