"""A step of a recipe with a loss function: nanodoc clears, differentiates and lets the optimizer
step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from nanodoc.loop.step_reading import Scalars, StepReading
from nanodoc.measure.gradients import Scratch, packed_vitals, really_nonfinite
from nanodoc.replay.observer import Observer
from nanodoc.replay.step import StepResult, StepRunner
from nanodoc.replay.step_state import StepState
from nanodoc.watch.amp import AmpWatch
from nanodoc.watch.probes import ProbeWatch
from nanodoc.watch.watch import Watch

Compute = Callable[[StepState, Observer | None], StepResult]


class DrivenStep:
    """Runs such steps."""

    def __init__(
        self,
        runner: StepRunner,
        named: list[tuple[str, torch.nn.Parameter]],
        watches: Sequence[Watch],
        amp: AmpWatch,
        probes: ProbeWatch,
    ) -> None:
        self._runner = runner
        self._named = named
        self._watches = watches
        self._amp = amp
        self._probes = probes
        self._scratch = Scratch()
        self.keeps_gradients = False
        """Gradients of one step are left for the next."""

    def run(self, start: StepState, compute: Compute) -> StepReading:
        """Forward and backward, and the reading of both."""
        losses = compute(start, None).losses
        at = time.perf_counter()
        scalars = Scalars(self._watches)
        vitals = packed_vitals(losses, self._named, scalars.collect(), self._scratch)
        reading = StepReading(vitals, norms=dict(zip(vitals.names, vitals.norms, strict=True)))
        if vitals.finite:
            reading.tripped = vitals if any(scalars.of(self._probes, vitals.extras)) else None
        else:
            bad = really_nonfinite(self._named)
            if not math.isfinite(vitals.loss) or (bad and self._amp.reading is None):
                reading.tripped, reading.bad_parameters = vitals, bad
        if reading.tripped is None:
            reading.scaler = self._amp.note(start, scalars.of(self._amp, vitals.extras))
            for watch in self._watches:
                watch.gradients()
            reading.own_seconds = time.perf_counter() - at
        return reading

    def finish(self) -> None:
        """The optimizer steps."""
        self._runner.update()
