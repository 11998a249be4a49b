"""What ended a run early, looked into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from nanodoc.errors import UserCodeError
from nanodoc.examination.exception import FailureLook, make_room
from nanodoc.examination.initial_state import optimizer_facts, sick_before_start
from nanodoc.examination.late_errors import late_error, late_failure
from nanodoc.examination.non_finite import Examined, Examiner
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.crash import CrashFacts
from nanodoc.facts.evidence import Trip
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import (
    about_an_index,
    device_is_lost,
    kept_from_kernel,
    out_of_memory,
    says_worker_died,
)
from nanodoc.facts.graph import graph_failure
from nanodoc.facts.ops import GrowthPoint, OptimizerFacts, ParameterFacts, ProbedFacts
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.looks.own_errors import telling
from nanodoc.loop.step_reading import StepReading
from nanodoc.measure.gradients import nonfinite_tensors
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.watchers.watch import SickSkip


@dataclass(slots=True)
class Stop:
    """What ended the run early."""

    trip: Trip | None = None
    failure: Failure | None = None
    capsule: StepState | None = None
    examined: Examined | None = None
    optimizers: tuple[OptimizerFacts, ...] = ()
    probed: tuple[ProbedFacts, ...] = ()
    crash: CrashFacts | None = None
    eagerly: Failure | None = None
    """What the step raised without its compiler, where the compiler had raised."""

    ranges: tuple[RangeFacts, ...] = ()

    @property
    def told(self) -> Failure | None:
        """The exception as the report tells it."""
        return self.eagerly or self.failure

    @property
    def without_device(self) -> bool:
        """The device answers no more, or would not if the step were run again."""
        failure = self.failure
        return failure is not None and (device_is_lost(failure) or kept_from_kernel(failure))

    @property
    def growth(self) -> tuple[GrowthPoint, ...]:
        """How the value grew that overflowed in half precision."""
        births = self.examined.births if self.examined is not None else ()
        return next((birth.growth for birth in births if birth.op.upcast_absmax is not None), ())


class FailingGraph(Protocol):
    """The watcher that examines a step which raised for its graph."""

    def at_failure(self, capsule: StepState, error: UserCodeError) -> None: ...

    def let_go(self) -> None: ...


class StopExaminer:
    """Looks into what ended a run; the run is over when it is called."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        build: BuildFacts,
        examiner: Examiner,
        failures: FailureLook,
        graph: FailingGraph,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._build = build
        self._examiner = examiner
        self._failures = failures
        self._graph = graph
        self._named = list(runner.recipe.model.named_parameters())
        self._devices = {runner.device, *(p.device for _, p in self._named)}
        self.notes: list[tuple[str, str]] = []
        self.interrupted = False
        """A look was: the report is to come at once, and nothing is run again any more."""

    def _kept_going(self, what: str) -> AbstractContextManager[None]:
        return telling(what, self.notes)

    def before_start(self) -> list[ParameterFacts]:
        """The parameters that are sick before the first step."""
        with self._kept_going("the parameters before the first step"):
            return sick_before_start(self._runner.recipe.model, self._build)
        return []

    def trip(
        self,
        capsule: StepState,
        reading: StepReading,
        indices: Sequence[int] | None,
        probed: Iterable[ProbedFacts],
    ) -> Stop:
        """A step whose loss, gradients or probes are not finite."""
        vitals, bad = reading.tripped, reading.bad_parameters
        assert vitals is not None
        trip = Trip(
            step=capsule.step,
            phase="backward" if math.isfinite(vitals.loss) else "forward",
            loss=vitals.loss,
            grad_norm=vitals.grad_norm,
            bad_parameters=tuple(bad),
            gradients_finite=not bad,
            zero_gradients=not bad and bool(vitals.norms) and not any(vitals.norms),
        )
        told = vitals.loss if reading.told is None else reading.told
        examined = None
        try:
            with self._kept_going("the step that failed"):
                examined = self._examiner.examine(capsule, told, vitals.grad_norm, indices)
        except KeyboardInterrupt:
            self.interrupted = True
            self.notes.append(("the step that failed", "its examination was interrupted"))
        # weights that were already bad when the step began: the optimizer of the step before made
        # them
        optimizers = self.hurt_by_optimizer() if capsule.step else ()
        seen = tuple(probed)
        return Stop(
            trip=trip,
            capsule=capsule,
            examined=examined,
            optimizers=optimizers,
            probed=seen if any(probe.bad for probe in seen) else (),
        )

    def skip(self, sick: SickSkip) -> Stop:
        """A skipped step that is sick without the loss scale too."""
        examined = None
        with (
            self._kept_going("the skipped step"),
            state_preserved(self._runner, self._keeper),
        ):
            examined = self._examiner.examine(sick.capsule, sick.loss, None)
        trip = Trip(
            step=sick.capsule.step,
            phase="backward" if math.isfinite(sick.loss) else "forward",
            loss=sick.loss,
            grad_norm=None,
            bad_parameters=sick.bad_parameters,
            gradients_finite=False,
        )
        return Stop(trip=trip, capsule=sick.capsule, examined=examined)

    def batch(self, error: UserCodeError, step: int) -> Stop:
        """A batch that could not be had."""
        failure = describe_failure(error)
        note_failure(here(), failure, step)
        lost = device_is_lost(failure)
        crash = None if lost else self._failures.at_batch(failure, error.cause)
        return Stop(failure=failure, crash=crash)

    def failure(
        self, capsule: StepState, error: UserCodeError, indices: Sequence[int] | None
    ) -> Stop:
        """A step that raised."""
        failure = describe_failure(error)
        note_failure(here(), failure, capsule.step)
        if not device_is_lost(failure) and (late := late_error(self._devices)) is not None:
            return self.lost(capsule.step, late, capsule, indices)
        if out_of_memory(failure):
            self._graph.let_go()
            make_room(error, self._runner.device)
        if device_is_lost(failure) or kept_from_kernel(failure):
            crash = self._failures.at_glance(capsule, indices)
            return Stop(failure=failure, capsule=capsule, crash=crash)
        examined = None
        if graph_failure(failure.message) is not None:
            self._graph.at_failure(capsule, error)
        # a closure that the optimizer calls is a forward and a backward, too
        elif error.phase in ("forward", "backward", "optimizer") and not out_of_memory(failure):
            examined = self._examiner.examine(capsule, None, None, indices)
        crash, ranges = self._failures.at_step(failure, capsule, indices)
        return Stop(
            failure=failure,
            eagerly=self._failures.eagerly,
            capsule=capsule,
            examined=examined,
            crash=crash,
            ranges=ranges if about_an_index(failure) else (),
        )

    def told_anywhere(
        self,
        step: int,
        error: BaseException,
        last: StepState | None,
        indices: Sequence[int] | None,
    ) -> Stop:
        """An error of the training's was raised in code of ours: torch tells of a dead worker of
        the loader, and of a lost device, wherever the process is."""
        if says_worker_died(error):
            return self.batch(UserCodeError(error, "data"), step)
        return self.lost(step, error, last, indices)

    def lost(
        self,
        step: int,
        error: BaseException,
        last: StepState | None,
        indices: Sequence[int] | None,
    ) -> Stop:
        """The device was lost to a kernel of step `step`, and a call that isn't the training's was
        told so. `last` is the start of the last step that began."""
        failure = late_failure(error, self._runner.phase)
        note_failure(here(), failure, step)
        capsule = last if last is not None and last.step == step else None
        crash = self._failures.at_glance(capsule, indices) if capsule is not None else None
        return Stop(failure=failure, capsule=capsule, crash=crash)

    def late(self, step: int, last: StepState | None, indices: Sequence[int] | None) -> Stop | None:
        """An error of the run's that its devices had not told yet."""
        error = late_error(self._devices)
        return self.lost(step, error, last, indices) if error is not None else None

    def hurt_by_optimizer(self) -> tuple[OptimizerFacts, ...]:
        """The optimizers that made weights non-finite."""
        bad = nonfinite_tensors(self._named)
        return optimizer_facts(self._runner.recipe, set(bad), self._build) if bad else ()
