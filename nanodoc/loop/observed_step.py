"""A step that is the user's own train_step: its vital signs are read when its optimizer steps, and
again at its end only if need be."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from nanodoc.loop.left_step import MOST_LEFT_OUT
from nanodoc.loop.step_reading import Compute, Scalars, StepDriver, StepReading
from nanodoc.measure.gradients import Vitals, packed_vitals, really_nonfinite
from nanodoc.replay.observer import Observer
from nanodoc.replay.optimizer_shares import Shares
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StepState
from nanodoc.watchers.amp import AmpWatch
from nanodoc.watchers.probes import ProbeWatch
from nanodoc.watchers.watch import Watch


class ObservedStep(StepDriver):
    """Runs such steps."""

    def __init__(
        self,
        runner: StepRunner,
        named: list[tuple[str, torch.nn.Parameter]],
        watches: Sequence[Watch],
        amp: AmpWatch,
        probes: ProbeWatch,
    ) -> None:
        super().__init__(runner, named, watches, amp, probes)
        self._skips_in_a_row = 0
        self._optimizer_steps = max(1, len(runner.recipe.optimizers))
        self._shares = Shares()
        self._evaluations = 2  # of a closure, until a step tells
        self.keeps_gradients = True  # until a step shows that it clears them
        self.begins_with_step = False
        """The step before has left gradients that no optimizer has stepped with."""
        self._steps_first = False
        """One of the steps has begun with an optimizer's step of the one before it."""

    def run(self, start: StepState, compute: Compute) -> StepReading:
        """Calls the train_step, and judges what it was seen to do."""
        observed = self.observe(start)
        return self.read(start, observed, compute(start, observed.observer).returned)

    def observe(self, start: StepState) -> ObservedVitals:
        """What is to be seen of the step that begins: its observer is open while it runs."""
        observer = Observer(self._runner.recipe, self._named, self._optimizer_steps).watch(start)
        observer.scratch, observer.shares = self._scratch, self._shares
        observer.on_gradients = self._gradients
        observer.expected_evaluations = self._evaluations
        observer.begins_with_step, observer.begins_sick = self.begins_with_step, self.left_sick
        return ObservedVitals(observer, self._watches, self._amp, self._probes)

    def read(self, start: StepState, observed: ObservedVitals, returned: Any) -> StepReading:
        """Judges what the step was seen to do. `returned` is what the train_step returned."""
        observer = observed.observer
        self.keeps_gradients = observer.leaves_gradients or not observer.cleared_before_backward
        self.begins_with_step = observer.leaves_gradients
        self._optimizer_steps = max(1, observer.optimizer_steps)
        self._evaluations = observer.evaluations or 2
        self.plain = bool(observer.losses) and not (observer.evaluations or observer.steps_first)
        self.rates = observer.rates
        at = time.perf_counter()
        vitals, final = observed.read(returned, self._named)
        values = observed.scalars.of(self._amp, vitals.extras)
        scaler = self._amp.note(start, values, of_step_before=observer.begins_with_scaler)
        norms = {
            **dict.fromkeys(observer.with_gradient, 1.0),
            **dict(zip(vitals.names, vitals.norms, strict=True)),
        }
        reading = StepReading(vitals, scaler, norms, losses=observer.losses)
        reading.own_seconds = time.perf_counter() - at
        self._steps_first |= observer.steps_first
        self._judge(reading, observer, final)
        if reading.tripped is None and not reading.left_out and observed.probed_bad:
            reading.tripped = final
        return reading

    def finish(self) -> None:
        """The train_step has stepped by itself."""

    def _judge(self, reading: StepReading, observer: Observer, final: Vitals) -> None:
        by_hand = not self._runner.recipe.optimizers  # the step itself writes to the weights
        sick = not math.isfinite(final.loss)
        unstepped = observer.tripped is None and self._is_unstepped(observer)
        left = unstepped and reading.scaler is None  # which skips what overflows
        if (by_hand or left) and not sick and not final.finite:
            sick = bool(really_nonfinite(self._named))
        reading.stepped_sick = observer.stepped_sick
        used = observer.stepped_sick or observer.tripped is not None
        kept = self.left_sick and not (used or observer.cleared_before_backward)
        if kept and really_nonfinite(self._named):
            return  # as the step before has told
        tripped = observer.tripped or (final if sick else None)
        self.left_sick = reading.unstepped = unstepped and tripped is not None
        idle = tripped is not None and not (observer.optimizer_steps or by_hand or unstepped)
        reading.left_out = idle and not self._is_kept(observer)
        by_scaler = bool(self._amp.calls.left_out)
        # the user's own code saw the bad loss and did not step on it; only doing so again and again
        # is sick
        if not reading.left_out:
            self._skips_in_a_row = 0
        elif not by_scaler:
            self._skips_in_a_row += 1
        deliberate = reading.left_out and self._skips_in_a_row <= MOST_LEFT_OUT
        if tripped is None or (deliberate and not by_scaler):
            return
        reading.tripped = tripped
        norms = zip(tripped.names, tripped.norms, strict=True)
        reading.bad_parameters = [name for name, norm in norms if not math.isfinite(norm)]
        losses = [float(loss) for loss in observer.losses]
        # as the replay counts: every backward of the step
        reading.told = sum(losses) / len(losses) if losses else tripped.loss

    def _is_unstepped(self, observer: Observer) -> bool:
        """The step leaves its gradients to the next one, as others before it have."""
        steps = observer.steps_first or (self._steps_first and not observer.optimizer_steps)
        return steps and observer.leaves_gradients

    def _is_kept(self, observer: Observer) -> bool:
        """The bad gradients stay, for a later step to use: that of a micro-batch, which is not left
        out."""
        kept = bool(observer.losses) and not observer.cleared_before_backward
        return kept and bool(really_nonfinite(self._named))


_ROUNDED = 1e-2  # relative, of half precision


class ObservedVitals:
    """What `observer` and the watchers read during one train_step."""

    def __init__(
        self, observer: Observer, watches: Sequence[Watch], amp: AmpWatch, probes: ProbeWatch
    ) -> None:
        self.observer = observer
        self._amp = amp
        self._probes = probes
        self.scalars = Scalars(watches)
        self.probed_bad = False
        """A probe of this step saw NaN or +inf."""
        self._unscaled: list[torch.Tensor] = []
        observer.extras = self._extras
        observer.on_fused_skip = amp.calls.skipped_inside

    def _extras(self, *, done: bool = False) -> list[torch.Tensor]:
        self._unscaled = [loss for loss in self._amp.calls.unscaled if loss.numel() == 1]
        return [*self.scalars.collect(done=done), *self._unscaled]

    def _losses(self, vitals: Vitals) -> tuple[float, ...]:
        """The unscaled losses among the extras that were read last."""
        return vitals.extras[len(vitals.extras) - len(self._unscaled) :]

    def read(
        self, result: Any, named: list[tuple[str, torch.nn.Parameter]]
    ) -> tuple[Vitals, Vitals]:
        """(over all its optimizer steps, at its end). `result` is what the train_step returned."""
        observer = self.observer
        final = self._known(result)
        if final is None:
            returned = [result.detach()] if _is_scalar(result) else []
            losses = returned or observer.losses[-1:]
            read = bool(observer.vitals) and not observer.steps_first
            final = packed_vitals(losses, [] if read else named, self._extras(done=True))
            if not returned and self._unscaled and math.isfinite(final.loss):
                final = final.with_loss(self._losses(final)[-1])
            still_scaled = self._amp.reading is not None and self._amp.calls.order.still_scaled
            if not observer.vitals and still_scaled:
                # a micro-batch of several: the optimizer will step later
                final = final.unscaled(final.extras[0])
        # what was read last holds the probes of the whole step
        self.probed_bad = any(self.scalars.of(self._probes, final.extras))
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
        observer = self.observer
        scaled = self._amp.calls.left_out and self._amp.calls.taken
        if len(observer.vitals) != 1 or observer.steps_first or scaled:
            return None
        vitals = observer.vitals[0]
        if result is None:
            return vitals.with_loss(self._before_scaling(vitals))
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

    def _before_scaling(self, vitals: Vitals) -> float:
        """The mean of the losses, not as a loss scaler made them."""
        told = self._losses(vitals)
        if not told or not math.isfinite(vitals.loss) or self._amp.reading is None:
            return vitals.loss
        scale, mean = vitals.extras[0], sum(told) / len(told)
        # what was scaled need not be what was differentiated: several in one call, or one to log
        own = len(told) == len(self.observer.losses)
        exact = own and math.isclose(mean * scale, vitals.loss, rel_tol=_ROUNDED)
        return mean if exact else vitals.loss / scale


def _is_scalar(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.numel() == 1 and not result.is_complex()
