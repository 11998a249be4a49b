"""How a step is run and read: its vital signs, and why it is no healthy one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from nanodoc.facts.amp import ScalerStep
from nanodoc.loop.guarded_watch import GuardedWatch
from nanodoc.measure.gradients import Scratch, Vitals
from nanodoc.replay.observer import Observer
from nanodoc.replay.step import StepResult, StepRunner
from nanodoc.replay.step_state import StepState
from nanodoc.watchers.amp import AmpWatch
from nanodoc.watchers.probes import ProbeWatch
from nanodoc.watchers.watch import Watch


@dataclass(slots=True)
class StepReading:
    """`tripped` are the vital signs that are not healthy, None of a healthy step."""

    vitals: Vitals
    scaler: ScalerStep | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    """Gradient norms by parameter, for those that have a gradient."""
    tripped: Vitals | None = None
    bad_parameters: list[str] = field(default_factory=list)
    told: float | None = None
    """The loss as a replay counts it, where that is another than the vitals'."""
    left_out: bool = False
    """The training code itself decided not to step."""
    unstepped: bool = False
    """It has tripped, and leaves what is not finite to the optimizer's step of the next one."""
    stepped_sick: bool = False
    """An optimizer has stepped with what the step before had left, which was not finite."""
    losses: Sequence[torch.Tensor] = ()
    """What was differentiated, detached."""
    own_seconds: float = 0.0
    """Seconds that were not the training's own."""


Compute = Callable[[StepState, Observer | None], StepResult]
"""The step's forward and backward, or the user's train_step under an observer."""


class StepDriver(ABC):
    """Runs one step and reads it: what differs between a loss function's steps and a
    train_step's."""

    keeps_gradients: bool
    """Gradients of one step are left for the next."""

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
        self._watches = [watch for watch in watches if watch.hears("scalars")]
        self._hearing_gradients = [watch for watch in watches if watch.hears("gradients")]
        self._amp = amp
        self._probes = probes
        self._scratch = Scratch()
        self.rates: dict[int, list[float | None]] = {}
        """As `Observer.rates`, of the step that was read last."""

    left_sick: bool = False
    """The last step has left what is not finite, its own or an earlier one's, for the next."""
    plain: bool = True
    """The step that was read last differentiated a loss, and no optimizer evaluated a closure."""

    @abstractmethod
    def run(self, start: StepState, compute: Compute) -> StepReading:
        """Forward and backward, and the reading of both."""

    @abstractmethod
    def finish(self) -> None:
        """The optimizer steps, where it has not stepped yet."""

    def _gradients(self) -> None:
        """The step's gradients are complete, and no optimizer has used them."""
        for watch in self._hearing_gradients:
            watch.gradients()


class Scalars:
    """The watchers' scalars, read with the vitals in one copy."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self._places: dict[int, slice] = {}

    def collect(self, *, done: bool = False) -> list[torch.Tensor]:
        """All of them, one watcher after the other."""
        found: list[torch.Tensor] = []
        for watch in self._watches:
            own = watch.scalars(done=done)
            inner = watch.inner if isinstance(watch, GuardedWatch) else watch
            self._places[id(inner)] = slice(len(found), len(found) + len(own))
            found += own
        return found

    def of(self, watch: Watch, values: tuple[float, ...]) -> tuple[float, ...]:
        """Those of one watcher, among the values that were read."""
        return values[self._places.get(id(watch), slice(0, 0))]
