"""What every watcher of a run is: told of the same moments, in the same order.

A watcher overrides the moments it needs. A new one is a file of its own and one entry in
`loop/watches.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.facts.ops import GrowthPoint
from nanodoc.looks.scheduler import Looks
from nanodoc.measure.gradients import Vitals
from nanodoc.replay.step_state import StepState

NOTHING: AbstractContextManager[None] = nullcontext()
"""What `around_step` gives where there is nothing to be opened."""


@dataclass(frozen=True, slots=True)
class SickSkip:
    """A skipped step that is sick even without the loss scale."""

    capsule: StepState
    bad_parameters: tuple[str, ...]
    loss: float


@dataclass(slots=True)
class RunEnd:
    """How the run ended, as the watchers are told."""

    last: StepState | None
    """The start of the last step."""
    steps: int
    step_seconds: float
    clean: bool
    """Steps were run and nothing broke."""
    looks: Looks
    """What is to be looked at is registered there."""
    whole: bool = False
    """Nothing broke, so that the last step can be run once more. Known after `Stage.END`, as are
    the next three."""
    failed: StepState | None = None
    """The start of the step that failed."""
    growth: tuple[GrowthPoint, ...] = ()
    """How the value that overflowed had grown."""
    sick_skip: SickSkip | None = None
    """Set by the watcher that found one."""


class Watch:
    """A watcher that does nothing. None of its methods may read a value from the device while the
    run goes on, but for the scalars, which the engine reads in one copy."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        """(what was not checked, why)"""

    def hears(self, moment: str) -> bool:
        """This watcher does something at a moment, by its method's name: the others need not be
        told of each step."""
        return getattr(type(self), moment) is not getattr(Watch, moment)

    def around_run(self) -> AbstractContextManager[None]:
        """Open from before the first step until after the last."""
        return nullcontext()

    @property
    def hopeless(self) -> bool:
        """Nothing more is to be learnt from further steps."""
        return False

    def before_step(self, start: StepState) -> float:
        """A step begins. Returns the seconds that are not the training's own."""
        return 0.0

    def around_step(self, start: StepState) -> AbstractContextManager[None]:
        """Open while the step's forward and backward run, and a train_step's optimizer; `NOTHING`
        in most steps."""
        return NOTHING

    def scalars(self, *, done: bool = False) -> list[torch.Tensor]:
        """0-dim tensors to be read together with the loss and the gradient norms. `done`: after
        the user's train_step."""
        return []

    def gradients(self) -> None:
        """The step's gradients are complete, and no optimizer has used them."""

    def after_backward(self, start: StepState, norms: Mapping[str, float]) -> float:
        """The step is healthy. `norms` are the gradient norms by parameter. Returns the seconds
        that are not the training's own."""
        return 0.0

    def after_step(self, start: StepState, vitals: Vitals, seconds: float) -> None:
        """The step is over; it took `seconds`."""

    def line(self) -> dict[str, Any]:
        """What the history says of the step besides loss and gradients."""
        return {}

    def at_end(self, end: RunEnd) -> None:
        """The run is over. Registers the looks that run a step again, or that need what others
        find; they put back whatever they change."""

    def facts(self) -> dict[str, Any]:
        """What the rules are told: fields of `Evidence`."""
        return {}
