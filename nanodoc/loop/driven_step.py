"""A step of a recipe with a loss function: nanodoc clears, differentiates and lets the optimizer
step."""

from __future__ import annotations

import math
import time

from nanodoc.loop.step_reading import Compute, Scalars, StepDriver, StepReading
from nanodoc.measure.gradients import packed_vitals, really_nonfinite
from nanodoc.replay.step_state import StepState


class DrivenStep(StepDriver):
    """Runs such steps."""

    keeps_gradients = False

    def run(self, start: StepState, compute: Compute) -> StepReading:
        """Forward and backward, and the reading of both."""
        losses = compute(start, None).losses
        at = time.perf_counter()
        scalars = Scalars(self._watches)
        vitals = packed_vitals(losses, self._named, scalars.collect(), self._scratch)
        norms = dict(zip(vitals.names, vitals.norms, strict=True))
        reading = StepReading(vitals, norms=norms, losses=losses)
        if vitals.finite:
            reading.tripped = vitals if any(scalars.of(self._probes, vitals.extras)) else None
        else:
            bad = really_nonfinite(self._named)
            if not math.isfinite(vitals.loss) or (bad and self._amp.reading is None):
                reading.tripped, reading.bad_parameters = vitals, bad
        if reading.tripped is None:
            reading.scaler = self._amp.note(start, scalars.of(self._amp, vitals.extras))
            self._gradients()
            reading.own_seconds = time.perf_counter() - at
        return reading

    def finish(self) -> None:
        """The optimizer steps."""
        self._runner.update()
