"""The engine of steps that somebody else runs: a script. It is told when one begins and when it is
over; only the first is run by the engine itself, once more, so that every watcher sees it whole."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.initial_state import sick_before_start
from nanodoc.examination.non_finite import Examined
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import Trip
from nanodoc.facts.failure import Failure
from nanodoc.facts.ops import ParameterFacts
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.looks.own_errors import is_own
from nanodoc.loop.briefly_watched import BrieflyWatched
from nanodoc.loop.left_step import left_step, versions_of
from nanodoc.loop.lockstep_run import SickStep
from nanodoc.loop.observed_step import ObservedStep, ObservedVitals
from nanodoc.loop.step_reading import StepReading
from nanodoc.loop.stop import Stop
from nanodoc.measure.gradients import packed_vitals, really_nonfinite
from nanodoc.replay.fsdp import as_between_steps
from nanodoc.replay.observer import LossObserver, Observer
from nanodoc.replay.step_state import StepState

_RAISES = re.compile(r"\b(raise|assert)\b")


class ScriptEngine(BrieflyWatched):
    """Its recipe's train_step is a recovered step."""

    sick: tuple[ParameterFacts, ...] = ()
    """Parameters that were sick before the first step."""
    replays: bool = True
    """A step that is run again says what the script's own said."""
    _observed: ObservedVitals | None = None
    unproven: bool = False
    """That a step can be run again has not been shown: it is tried where one is sick, and believed
    where it comes to the same, bit by bit."""
    _judging: ObservedVitals | None = None
    """What was seen of the step that is over."""
    _before: StepState | None = None
    """The start of the step before the open one."""

    def first(
        self,
        capsule: StepState,
        indices: Sequence[int] | None,
        *,
        trained: bool = False,
        steps_first: bool = False,
    ) -> Stop | str | None:
        """Runs the script's first step once more from its start. Leaves everything where that
        step's end left it; whoever calls puts it back. `trained`: steps before it had trained the
        model, unwatched; `steps_first`: it begins with the optimizer's step of the last of them."""
        self.begins_with_step(steps_first)
        self.keeper.restore(capsule)
        found = sick_before_start(self.recipe.model, self.build)
        self.sick = tuple(replace(sick, trained=trained) for sick in found)
        self._indices = indices
        self._tell_begun(capsule)
        return self._begun(capsule, time.perf_counter(), None)

    def model_was_changed(self) -> None:
        """The script trains something else by now, with a model that it has changed."""
        self._graph.ownership.closed = True

    def computes_otherwise(self) -> bool:
        """The step would, while a function mode watches it."""
        return self.build.is_compiled(self.recipe.model) or self._graph.fused()

    def going_on(self) -> None:
        """The first step was run again, and the script goes on with its own."""
        self.alone.end()
        self.looks.going_on()
        here().going_on()

    def first_was_sick(self, losses: Sequence[torch.Tensor]) -> Stop:
        """The script's first step, which can't be run again, was not finite: one of its losses, or
        a gradient of them."""
        self._over()
        values = [float(loss) for loss in losses if loss.numel() == 1]
        finite = all(map(math.isfinite, values))
        trip = Trip(
            step=0,
            phase="backward" if finite else "forward",
            loss=values[-1] if values else None,
            grad_norm=None,
            gradients_finite=not finite,
        )
        return Stop(trip=trip, examined=Examined((), (), "not_run"))

    def first_was_well(
        self, losses: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        """The script's first step, which is not run again, had these losses and gradients."""
        values = [float(loss) for loss in losses if loss.numel() == 1]
        loss = sum(values) / len(values) if values else 0.0
        norm = math.hypot(*(float(g.to_dense().norm()) for g in gradients))
        self.course.losses.append(loss)
        self.course.grad_norms.append(norm)
        here().finished(0, loss, norm)

    def open(
        self,
        step: int,
        batch: Any,
        indices: Sequence[int] | None,
        waited: float,
        on_trip: Callable[[], None],
        on_sick_step: Callable[[], None],
    ) -> None:
        """The script begins a step that is watched in full. `waited`: seconds that it waited for
        its data; `on_trip` is called where its vital signs are not healthy, before the optimizer
        has stepped; `on_sick_step` before it steps with what `left` has left."""
        here().at(step, "forward")
        self.requested.eagerly = self.sought is not None
        self.requested.closely = not self.replays or self.unproven or self.requested.eagerly
        assert isinstance(self._driver, ObservedStep)
        self._indices = indices
        self.learning.waits.append(waited)
        self._before = self._last
        capsule = self._capsule(step, [batch])
        self._tell_begun(capsule)
        self._around, self._within = ExitStack(), ExitStack()
        for watch in self._hearing["around_step"]:
            self._around.enter_context(watch.around_step(capsule))
        self._observed = observed = self._driver.observe(capsule)
        observed.observer.on_trip, observed.observer.on_sick_step = on_trip, on_sick_step
        self._within.enter_context(self.amp.calls.at(step))
        self._within.enter_context(observed.observer)
        self._began = time.perf_counter()

    def holds_back(self) -> bool:
        """The open step, which has tripped, is sick in this rank's part alone: the script is to go
        on until what is not finite has come to all ranks, which can run it again then."""
        observed, capsule = self._observed, self._last
        if observed is None or capsule is None or self.replays or self.requested.running:
            return False
        return self.lockstep.holds_back(capsule, observed.observer.tripped)

    @property
    def is_open(self) -> bool:
        """A step has begun and is not over."""
        return self._observed is not None or self.glance is not None

    @property
    def _seen(self) -> Observer | LossObserver | None:
        return self._observed.observer if self._observed is not None else self.glance

    @property
    def optimizer_steps(self) -> int:
        """How many the open step has made."""
        return self._seen.optimizer_steps if self._seen is not None else 0

    @property
    def late_steps(self) -> int:
        """Those of them with gradients of the open step itself."""
        return self._seen.late_steps if self._seen is not None else 0

    @property
    def steps_first(self) -> bool:
        """As `Observer`."""
        return self._observed is not None and self._observed.observer.steps_first

    @property
    def only_steps(self) -> bool:
        """The open step has only stepped with what the one before had left."""
        if self._observed is None or self.differentiated:
            return False
        observer = self._observed.observer
        return observer.begins_with_step and observer.early_steps > 0 and not observer.late_steps

    @property
    def differentiated(self) -> bool:
        """The open step has differentiated a loss."""
        return self._seen is not None and self._seen.differentiated

    @property
    def trained(self) -> bool:
        """It has, or an optimizer has stepped."""
        return self.differentiated or self.optimizer_steps > 0

    def close(self) -> Stop | None:
        """The step is over."""
        if self.glance is not None:
            self.left = None
            return self._close_briefly()
        observed, capsule = self._left_alone()
        self._judging = observed
        self.course.met(observed.observer.losses, observed.observer.outputs)
        assert isinstance(self._driver, ObservedStep)
        reading = self._driver.read(capsule, observed, None)
        trouble = self._judged(*self._to_judge(capsule, reading), self._began)
        self._around.close()
        self._finished(capsule.step, time.perf_counter() - self._began, healthy=trouble is None)
        return trouble

    def set_aside(self, loss: float, *, gone: bool) -> None:
        """The open step is left before its loss, which is not finite, was differentiated; `gone`:
        and its loop with it."""
        if self.glance is not None:
            brief = self._left_brief()[1]
            # weights that are sick are looked into when the run is over
            start = None if self.brief.are_sick() else self.brief.start_now(brief)
            self.brief.abandon(brief)
        else:
            self._judging, start = self._left_alone()
            self.checkpoints.abandon(start.step)
            self._around.close()
            self._last = self._before
        if self.left is not None and self.left.told is None:
            self.left.times += 1
        elif start is not None:
            self.left = left_step(start, self.recipe, self._named, loss, self._indices)
        if self.left is not None:
            self.left.gone = gone

    def left_at_first(
        self, start: StepState, loss: float, indices: Sequence[int] | None, *, used: bool = False
    ) -> None:
        """The script has left its loop, for its loss, in the first step. `used`: it is about to
        step with that one's gradients."""
        self.left = left_step(start, self.recipe, self._named, loss, indices)
        self.left.gone = True
        if used:
            vitals, bad = packed_vitals([], self._named), really_nonfinite(self._named)
            vitals = vitals.with_loss(loss)
            self.left.told = StepReading(vitals, tripped=vitals, bad_parameters=bad)

    def ended_by_left(self) -> Stop | None:
        """The last that was seen of the training are steps that were set aside: the run ends with
        the first of them. None where there is none, or where the script only leaves them out."""
        left = self.left
        if left is None or not left.ends:
            return None
        self.left = None
        self._over()
        as_between_steps(self.recipe.model)
        moved = left.start.weights is None and left.versions != versions_of(self._named)
        if moved:  # the script has loaded others since
            sick = SickStep(left.start.step, None, left.reading.vitals, (), left.indices)
            return self._stop_of(sick, self._unseen(sick.step))
        return self._judged(*self._back_to_left(left), time.perf_counter())

    def stepped_sick(self) -> None:
        """An optimizer is about to step with what is not finite in `left`."""
        self.abandon()
        if self.left is not None:
            self.left.gone = True

    def abandon(self) -> None:
        """The open step was none, or nothing is watched any more: an error of nanodoc's own."""
        if not self.is_open:
            return
        if self.glance is not None:
            self.brief.abandon(self._left_brief()[1])
            return
        observed, start = self._left_alone()
        if observed.observer.early_steps:  # with what the step before had left
            self.begins_with_step(False)
        self.checkpoints.abandon(start.step)
        self._around.close()
        self._last = self._before

    def begins_with_step(self, begins: bool) -> None:
        """The next one does: the last has left gradients."""
        assert isinstance(self._driver, ObservedStep)
        self._driver.begins_with_step = begins

    def come_to_the_same(self) -> bool:
        """As `BriefSteps`, of the last few steps. An error of nanodoc's own says no."""
        try:
            return self.brief.come_to_the_same(self._driver)
        except Exception as error:
            if not is_own(error):
                raise
            return False

    def ask_to_end(self) -> None:
        """The run is cut short: its report is to come at once."""
        self._interrupts.asked = True

    def failed(self, error: UserCodeError) -> Stop:
        """The step raised."""
        if self.glance is not None:
            return self._failed(self._left_brief()[1], error)
        observed, capsule = self._left_alone()
        stop = None
        if not self.replays:
            failure = describe_failure(error)
            note_failure(here(), failure, capsule.step)
            stop = self._looked_back(capsule, failure) or Stop(
                failure=failure, examined=self._examined(capsule, observed.observer, error=error)
            )
        self._around.close()
        self._over()
        return stop or self._failed(capsule, error)

    def _looked_back(self, capsule: StepState, failure: Failure) -> Stop | None:
        """A step before the one that raised, where the script's own line raised, on all ranks, and
        one of them had held that step back: the script saw what had come of it."""
        line = failure.frames[-1].code if failure.frames else ""
        if not (self.lockstep.enabled and _RAISES.search(line)):
            return None
        as_between_steps(self.recipe.model)
        found = self._run_together(capsule, ())
        earlier = self.lockstep.earlier
        if earlier is None:
            return None
        here().say({})  # it was noted as what ended the run
        return self._stop_of(earlier, found or self._unseen(earlier.step))

    def failed_between(self, error: UserCodeError, step: int) -> Stop:
        """Something raised that is no step: the loader, or what is outside of the training."""
        self.abandon()
        self._over()
        if error.phase == "data":
            return self._stops.batch(error, step)
        failure = describe_failure(error)
        note_failure(here(), failure, None)
        return Stop(failure=failure)

    def _judged(self, capsule: StepState, reading: StepReading, began: float) -> Stop | None:
        if reading.tripped is None:
            return super()._judged(capsule, reading, began)
        found = None
        if self.unproven:  # what a rank comes to by itself may be left from what others sent
            found = self._run_together(capsule, reading.bad_parameters)
        if self.replays and found is None:
            live = self._as_it_ran(capsule, reading)
            stop = super()._judged(capsule, reading, began)
            return stop if stop is None else self._believed(stop, live)
        assert self._judging is not None
        sick = self._sick(capsule, reading)
        if self.lockstep.is_held(capsule):
            self.lockstep.hold(sick)
            return super()._judged(capsule, replace(reading, tripped=None), began)
        examined = found or self._examined(capsule, self._judging.observer, reading.bad_parameters)
        first = self.lockstep.first or sick
        if examined.reproduced == "not_run":
            examined = self._unseen(first.step)
        return self._stop_of(first, examined)

    def _as_it_ran(self, capsule: StepState, reading: StepReading) -> Examined | None:
        """What a sick step showed that was traced closely while it ran; None of any other."""
        tracer, observed = self.requested.running, self._judging
        if tracer is None or observed is None or not self.requested.closely:
            return None
        return self._seen_in(tracer, observed.observer.losses, capsule, reading.bad_parameters)

    def _believed(self, stop: Stop, live: Examined | None) -> Stop:
        """A sick step that was run again. Where it is not known that this says what the script's
        own did, only the same bit by bit is believed, and else what it showed `live`."""
        if stop.examined is None or stop.trip is None:
            return stop
        again = stop.examined.reproduced
        if self.unproven:
            self.unproven = again != "bitwise"
        if not self.unproven and (again != "no" or live is None):
            return stop
        if live is not None:
            self.traced = f"step {stop.trip.step} traced as it ran"
        return replace(stop, examined=live or self._unseen(stop.trip.step), capsule=None)

    def _examined(
        self,
        capsule: StepState,
        observer: Observer,
        bad: Sequence[str] = (),
        error: UserCodeError | None = None,
    ) -> Examined:
        """What a step that can't be run again by this rank showed while it ran, if it was traced;
        else what it shows when all ranks run it again together."""
        tracer = self.requested.running
        if tracer is not None:
            return self._traced_live(tracer, observer.losses, capsule, bad, error)
        found = self._run_together(capsule, bad) if error is None else None
        return found or self._unseen(capsule.step)

    def _end(self, trouble: Stop, steps: int) -> Stop:
        return super()._end(trouble, steps) if self.replays and not self.unproven else trouble

    def _left_alone(self) -> tuple[ObservedVitals, StepState]:
        """Nothing of the open step is watched any more."""
        observed, capsule = self._observed, self._last
        assert observed is not None
        assert capsule is not None
        self._observed = None
        self._within.close()
        return observed, capsule
