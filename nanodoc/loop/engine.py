"""The engine of a recipe: runs its steps, watched."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from nanodoc.errors import UserCodeError, chosen_end
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import EXPERIMENTS
from nanodoc.facts.failure_kinds import is_told_anywhere
from nanodoc.facts.ops import ParameterFacts
from nanodoc.heartbeat import trail
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.looks.own_errors import is_own, own_error
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.shared_run import SharedRun
from nanodoc.loop.step_reading import StepReading
from nanodoc.loop.stop import Stop
from nanodoc.loop.watched_run import END
from nanodoc.replay.parts import of_others_too
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import run_step
from nanodoc.replay.step_state import BriefStep, StepState
from nanodoc.tensors.nested import in_own_containers


class Engine(SharedRun):
    """Runs one recipe on one device for a number of steps."""

    _was_brief = False
    """The last step was watched by its losses alone."""

    def run(self) -> Outcome:
        """Runs until the steps are done, the data ends, something is found, or the user
        interrupts."""
        parts = of_others_too(self.recipe.model)
        if parts is not None:
            self.lockstep.enabled = self.requested.closely = True
            why = f"steps are not re-run: they reach {parts}"
            self._notes.append((EXPERIMENTS, why))
        sick = self._stops.before_start()
        hopeless = any(parameter.facts.nonfinite for parameter in sick)
        trouble = Stop()
        step = 0
        with self._interrupts, self.watching():
            while step < self._steps and not (hopeless or self._interrupts.asked):
                if not self._was_brief and self._is_hopeless():
                    break
                ended = self._breakable_step(step)
                if ended is None:
                    step += 1
                    continue
                if isinstance(ended, Stop):
                    trouble = ended
                    # a step before the last one may be what was sick
                    step = trouble.trip.step + 1 if trouble.trip is not None else step
                break
        return self.conclude(trouble, step, tuple(sick))

    def _breakable_step(self, step: int) -> Stop | str | None:
        """As `_step`; where the process is about to be ended, sooner than the step, `END`."""
        interrupts = self._interrupts
        interrupts.in_step = True
        try:
            return self._step(step)
        except KeyboardInterrupt:
            if not interrupts.broke_off:
                raise
            self._last = None  # nobody knows how far the step came
            self._notes.append((f"step {step}", "interrupted by SIGTERM"))
            return END
        finally:
            interrupts.in_step = False

    def _is_hopeless(self) -> bool:
        """What a step that was watched in full has shown."""
        return any(watch.hopeless for watch in self._hearing["hopeless"])

    def _step(self, step: int) -> Stop | str | None:
        """One step; None to go on, a trouble, or `END` when the data has run out."""
        try:
            return self._watched_step(step)
        except Exception as error:
            if is_told_anywhere(error):  # in code of ours, of an error that is the training's
                self._over()
                return self._stops.told_anywhere(step, error, self._last, self._indices)
            if step == 0 or not is_own(error):  # before anything was seen there is no report
                raise
            self._last = None  # nobody knows how far the step came
            self._notes.append((f"the steps from {step} on", own_error(error)))
            return END

    def _watched_step(self, step: int) -> Stop | str | None:
        crumbs, before = trail.current, self._last
        if self.brief.shown is None and self.brief.to_be_shown:
            self.brief.shown = self._come_to_the_same()
        if self.lockstep.held is not None and (overdue := self.overdue(step)) is not None:
            return overdue
        crumbs.at(step, "data")
        try:
            batches, began = self._drawn()
        except UserCodeError as error:
            if chosen_end(error):
                return self._left(step)
            self._over()
            return self._stops.batch(error, step)
        if batches is None:
            passes = f"the data ended after {step} steps and can't be iterated again"
            self._notes.append(("further steps", passes))
            return END
        contained = [in_own_containers(batch) for batch in batches]
        self._was_brief = self.brief.wants(step)
        if self._was_brief:
            return self._brief_step(step, contained, batches)
        capsule = self._capsule(step, contained)
        capsule.own = batches
        self._tell_begun(capsule)
        if self.checkpoints.found_sick and (sick := self.sick_unnoticed(step)) is not None:
            return sick
        return self._begun(capsule, began, before)

    def _come_to_the_same(self) -> bool:
        """The last few steps, run again, do. An error of nanodoc's own, for want of memory, say,
        says no."""
        try:
            with state_preserved(self.runner, self.keeper, moving=True):
                return self.brief.come_to_the_same(self._driver)
        except Exception as error:
            if is_told_anywhere(error) or not is_own(error):
                raise
            return False

    def conclude(self, trouble: Stop, steps: int, sick: tuple[ParameterFacts, ...]) -> Outcome:
        """As `WatchedRun`; of a step that one rank can't run again, nothing is tried."""
        outcome = super().conclude(trouble, steps, sick)
        return replace(outcome, start=None, capsule=None) if self.lockstep.enabled else outcome

    def _judged(self, capsule: StepState, reading: StepReading, began: float) -> Stop | None:
        if reading.tripped is None or not self.lockstep.enabled:
            return super()._judged(capsule, reading, began)
        sick, bad = self._sick(capsule, reading), reading.bad_parameters
        if (tracer := self.requested.running) is not None:
            return self._stop_of(sick, self._traced_live(tracer, reading.losses, capsule, bad))
        if self.lockstep.holds_back(capsule, reading.tripped):
            self.lockstep.hold(sick)
            return super()._judged(capsule, replace(reading, tripped=None), began)
        examined = self._run_together(capsule, bad)
        sick = self.lockstep.first or sick
        return self._stop_of(sick, examined or self._unseen(sick.step))

    def _failed(self, start: StepState | BriefStep, error: UserCodeError) -> Stop:
        if not self.lockstep.enabled:
            return super()._failed(start, error)
        self._over()
        failure = describe_failure(error)
        note_failure(here(), failure, start.step)
        return Stop(failure=failure, examined=self._unseen(start.step))

    def _end(self, trouble: Stop, steps: int) -> Stop:
        return trouble if self.lockstep.enabled else super()._end(trouble, steps)

    def _drawn(self) -> tuple[list[Any] | None, float]:
        """(the step's batches, when they were there); no batches where the data has ended."""
        passes = self._feed.passes
        at = time.perf_counter()
        batches, self._indices = self._feed.step(self._micro_batches)
        began = time.perf_counter()
        self.learning.waits.append(began - at)
        if batches is None:
            return None, began
        recipe = self.recipe
        passed = self._feed.passes > passes and recipe.scheduler is not None
        if passed and recipe.scheduler_interval == "epoch":
            self.runner.schedule()
        return batches, began

    def _brief_step(self, step: int, contained: list[Any], batches: list[Any]) -> Stop | str | None:
        """A loss function's step that is watched by its loss alone. `contained` are the batches in
        containers of ours."""
        start = self.keeper.take_briefly(step, contained)
        self.brief.begin(start)
        start.indices = self._indices
        began = time.perf_counter()
        self.runner.own = batches
        try:
            losses = run_step(self.runner, batches).losses
            loss = losses[0].item() if len(losses) == 1 else sum(map(float, losses)) / len(losses)
            if not math.isfinite(loss):
                return self._sick_briefly(start, loss)
            self._driver.finish()
            if self.recipe.scheduler is not None and self.recipe.scheduler_interval == "step":
                self.runner.schedule()
        except UserCodeError as error:
            return self._raised(start, error, self._last)
        finally:
            self.runner.own = []
        self._finished_briefly(start, loss, time.perf_counter() - began)
        return None
