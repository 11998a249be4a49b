"""A script's step that was left before its loss was differentiated, since that is not finite: the
script looks at its loss itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from nanodoc.loop.step_reading import StepReading
from nanodoc.measure.gradients import Vitals
from nanodoc.replay.step_state import StepState

MOST_LEFT_OUT = 5
"""A script may leave out a bad batch; of more than this many in a row no training comes."""


@dataclass(slots=True)
class LeftStep:
    """The first of those since the last step that trained. Whether the training goes on or ends
    with it shows later."""

    start: StepState
    """With weights, optimizers and buffers of its own."""
    loss: float
    indices: list[int] | None
    times: int = 1
    """It, and those behind it that were left in the same way."""

    @property
    def reading(self) -> StepReading:
        """As that of a step whose loss was differentiated."""
        vitals = Vitals(loss=self.loss, grad_norm=math.nan, norms=(), names=(), extras=())
        return StepReading(vitals, tripped=vitals)


def kept_apart(start: StepState) -> StepState:
    """The start with buffers of its own: those of the next step take the place of a step's."""
    buffers = [
        (module, name, buffer, saved if saved is None else saved.clone())
        for module, name, buffer, saved in start.buffers
    ]
    return replace(start, buffers=buffers)
