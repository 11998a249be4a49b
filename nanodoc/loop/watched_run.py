"""A run that is watched, whoever drives its steps: reads their vital signs, and has looked into
what ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from nanodoc.errors import UserCodeError, chosen_end
from nanodoc.examination.exception import FailureLook
from nanodoc.examination.non_finite import Examiner
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.ops import ParameterFacts
from nanodoc.heartbeat import trail
from nanodoc.heartbeat.trail import here
from nanodoc.looks.own_errors import is_own, telling
from nanodoc.looks.scheduler import DEFAULT_BUDGET, Looks, Stage
from nanodoc.loop.brief_steps import Again, BriefSteps, unseen
from nanodoc.loop.driven_step import DrivenStep
from nanodoc.loop.history import History
from nanodoc.loop.interrupts import Interrupts
from nanodoc.loop.left_step import LeftStep
from nanodoc.loop.observed_step import ObservedStep
from nanodoc.loop.outcome import Outcome, RunMetrics, gather, live_metrics, without_device
from nanodoc.loop.step_reading import StepReading
from nanodoc.loop.stop import Stop, StopExaminer
from nanodoc.loop.watches import Watches, WatchOptions
from nanodoc.progress import LiveMetrics
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.batch_source import BatchSource
from nanodoc.replay.local_collectives import LocalCollectives
from nanodoc.replay.observer import Observer
from nanodoc.replay.rng import RandomState
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepResult, StepRunner, run_step
from nanodoc.replay.step_state import BriefStep, StateKeeper, StepState, copy_weights
from nanodoc.replay.traced_replay import Replayer
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.tensors.modules import move_module
from nanodoc.trace.functions import READS_ANYTHING
from nanodoc.watchers.requested_steps import LookOptions
from nanodoc.watchers.watch import RunEnd

_SCHEDULE_OVER, END = "Tried to step", "end"  # the first as OneCycleLR says


class WatchedRun:
    """One recipe on one device. `Engine` runs its steps; a script runs its own (`ScriptEngine`)."""

    moved_elsewhere = False  # optimizers have moved weights behind the last step, unwatched

    def __init__(  # noqa: PLR0913 - one keyword per option of a run, as whoever runs one has them
        self,
        recipe: Recipe,
        device: torch.device,
        amp_dtype: torch.dtype | None,
        *,
        steps: int,
        history: History | None = None,
        build_facts: BuildFacts | None = None,
        looks: LookOptions | None = None,
        leak_check: bool = True,
        range_check: bool = True,
        checkpoints: bool = True,
        checkpoint_every: int | None = None,
        samples: bool = True,
        sample_every: int | None = None,
        open_ended: bool = False,
        budget: float = DEFAULT_BUDGET,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        move_module(recipe.model, device, recipe.optimizers)
        build = self.build = build_facts or BuildFacts()
        self.recipe = recipe
        self.runner = runner = StepRunner(recipe, device, amp_dtype)
        self.keeper = keeper = StateKeeper(recipe, device)
        self.replayer = replayer = Replayer(runner, keeper)
        self.examiner = Examiner(replayer)
        self.checkpoints = WeightHistory(
            runner, keeper, every=checkpoint_every, enabled=checkpoints
        )
        self._named = list(recipe.model.named_parameters())
        self._steps, self._progress = steps, progress
        self._open_ended = open_ended  # nobody said how many steps to run
        self._feed = BatchSource(recipe.data)
        self.alone = LocalCollectives(recipe)
        self.course, self.looks = RunMetrics(runner, history), Looks(budget)
        self._interrupts = Interrupts()
        self._notes: list[tuple[str, str]] = []
        self._indices: Sequence[int] | None = None
        self._last: StepState | None = None
        self._micro_batches = 1 if runner.observing else recipe.accumulate
        options = WatchOptions(
            looks=looks or LookOptions(),
            leak_check=leak_check,
            range_check=range_check,
            samples=samples,
            sample_every=sample_every,
        )
        watches = Watches(runner, keeper, replayer, build, self.checkpoints, options)
        self._graph, self._probes, self.amp = watches.graph, watches.probes, watches.amp
        self.requested, self.sampler = watches.requested, watches.sampler
        self.learning, self.rank_gradients = watches.learning, watches.rank_gradients
        self.brief = BriefSteps(runner, keeper, self.checkpoints, self.course, self.learning)
        if options.closely or checkpoint_every is not None or not checkpoints:
            self.brief.give_up()
        self.watches, self._hearing = watches.in_order, watches.hearing
        driver = ObservedStep if runner.observing else DrivenStep
        self._driver = driver(runner, self._named, self.watches, self.amp, self._probes)
        failures = FailureLook(runner, keeper, build, self._feed)
        self._stops = StopExaminer(runner, keeper, build, self.examiner, failures, self._graph)

    def conclude(self, trouble: Stop, steps: int, sick: tuple[ParameterFacts, ...]) -> Outcome:
        """The run is over after so many steps. Takes the looks that waited for its end. `sick` are
        the parameters that were sick before it began."""
        self._over()
        if trouble.failure is None:
            late = self._stops.late(max(steps - 1, 0), self._last, self._indices)
            trouble = late or trouble
            if trouble.trip is None and (unnoticed := self.sick_unnoticed(steps)) is not None:
                trouble, steps = unnoticed, len(self.course.losses)
        if trouble.without_device:
            asked, ranges = self._interrupts.asked, self._graph.ranges
            return without_device(self.course, trouble, steps, ranges, interrupted=asked)
        if any(parameter.facts.nonfinite for parameter in sick) and not steps:
            # the first step's start, of a run that would be no use
            unseen = self._feed.unseen(self._micro_batches)
            self._last = self._capsule(0, unseen) if unseen else None
        return self._outcome(self._end(trouble, steps), sick, steps)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """What the watchers keep open around the run."""
        with ExitStack() as around:
            for watch in self.watches:
                around.enter_context(watch.around_run())
            yield

    def now(self) -> LiveMetrics:
        """The vital signs so far."""
        return live_metrics(self.course, self.learning, self.sampler)

    def _begun(
        self, capsule: StepState, began: float, before: StepState | None
    ) -> Stop | str | None:
        """The step whose start is `capsule`; `before` is the start of the one before it."""
        step = capsule.step
        try:
            with ExitStack() as around:
                for watch in self._hearing["around_step"]:
                    around.enter_context(watch.around_step(capsule))
                trouble = self._run_step(capsule, began)
        except UserCodeError as error:
            return self._raised(capsule, error, before)
        self._finished(step, time.perf_counter() - began, healthy=trouble is None)
        return trouble

    def _raised(
        self, start: StepState | BriefStep, error: UserCodeError, before: StepState | None
    ) -> Stop | str:
        """The step that began with `start` raised: a failure, or an end that it chose."""
        if self._open_ended and _SCHEDULE_OVER in str(error.cause):
            over = f"the learning-rate schedule ended after {start.step} steps"
            self._notes.append(("further steps", f"{over}, and --steps asks for no more"))
            return END
        if chosen_end(error):
            self._last = before  # a step that leaves is no step to be looked at
            return self._left(start.step)
        return self._failed(start, error)

    def _failed(self, start: StepState | BriefStep, error: UserCodeError) -> Stop:
        self._over()
        again = self.brief.before_failure(start, self._driver)
        if isinstance(again, Again):  # a step before it was sick, and told nobody
            return self._tripped(*self._back_to(again))
        if again is not None:
            self._last = again
        capsule = again or start
        assert isinstance(capsule, StepState)
        return self._stops.failure(capsule, error, self._indices)

    def _back_to(self, again: Again | LeftStep) -> tuple[StepState, StepReading]:
        """The run ends with a step before the last one, or with one that was watched briefly."""
        self._last, self._indices = again.start, again.indices
        self.course.back_to(again.start.step)
        return again.start, again.reading

    def _sick_briefly(self, start: BriefStep, loss: float) -> Stop:
        """A step that was watched by its losses alone is sick."""
        self._over()
        return self._sick_again(self.brief.sick(start, self._driver), start.step, loss)

    def _sick_again(self, again: Again | None, step: int, loss: float) -> Stop:
        """What a step that was run again comes to; if none was, `step` seemed to be sick."""
        if again is not None:
            return self._tripped(*self._back_to(again))
        self.course.losses[step:], self.course.grad_norms[step:] = [loss], [math.nan]
        self._last = None
        return unseen(step, loss)

    def sick_unnoticed(self, steps: int) -> Stop | None:
        """The weights are not finite after so many steps, of which some were watched by their
        losses alone: what made them so."""
        if not self.brief.are_sick():
            return None
        self._over()
        again = self.brief.first_sick(steps - 1, self._driver)
        if again is None and self.brief.came_to == steps - 1:
            return Stop()  # no loss and no gradient was sick: an optimizer made the weights so
        return self._sick_again(again, steps - 1, self.course.losses[-1])

    def _finished(self, step: int, seconds: float, *, healthy: bool) -> None:
        """A step has ended; it took `seconds`."""
        loss = self.course.losses[-1]
        if healthy:
            self.course.looked(self.sampler.inside, self.sampler.behind)
            self.sampler.elapsed(seconds - self.sampler.inside - self.sampler.behind)
            self.checkpoints.after_step(loss, seconds, self._driver.rates)
        self._told(step, loss)

    def _finished_briefly(self, step: BriefStep, loss: float, seconds: float) -> None:
        self.course.brief_step(step, loss, seconds)
        self._told(step.step, loss)

    def _told(self, step: int, loss: float) -> None:
        trail.current.finished(step, loss, self.course.grad_norms[-1])
        if self._progress is not None:
            self._progress(step, loss)

    def _tell_begun(self, capsule: StepState) -> None:
        self.brief.write_down()
        told: list[Any] = self._hearing["before_step"]
        self.course.own_seconds += sum(watch.before_step(capsule) for watch in told)
        self.course.own_seconds += self.checkpoints.before_step(capsule, self._indices)
        self._last = capsule

    def _left(self, step: int) -> str:
        self._notes.append(("further steps", f"the training called sys.exit in step {step}"))
        return END

    def _run_step(self, capsule: StepState, began: float) -> Stop | None:
        return self._judged(capsule, self._driver.run(capsule, self._compute), began)

    def _judged(self, capsule: StepState, reading: StepReading, began: float) -> Stop | None:
        """What comes of a step as it was read; a healthy one is finished."""
        if reading.tripped is not None:
            self._over()
            if self.brief.are_sick():
                again = self.brief.before(capsule, self._driver)
                # else every step before it was well: its optimizer made the weights so
                if again is not None or self.brief.came_to != capsule.step - 1:
                    return self._sick_again(again, capsule.step, reading.tripped.loss)
            return self._tripped(capsule, reading)
        self.course.own_seconds += reading.own_seconds
        told = self._hearing["after_backward"]
        began += sum(watch.after_backward(capsule, reading.norms) for watch in told)
        self._driver.finish()
        if self.recipe.scheduler_interval == "step":
            self.runner.schedule()
        seconds = time.perf_counter() - began
        for watch in self._hearing["after_step"]:
            watch.after_step(capsule, reading.vitals, seconds)
        line = {k: v for watch in self._hearing["line"] for k, v in watch.line().items()}
        self.course.step(
            capsule, reading.vitals, reading.scaler, seconds, left_out=reading.left_out, extra=line
        )
        odd = reading.left_out or self._probes.heard
        self.brief.full_step(capsule.step, plain=self._driver.plain and not odd)
        return None

    def _tripped(self, capsule: StepState, reading: StepReading) -> Stop:
        assert reading.tripped is not None
        self.course.tripped(capsule.step, reading.tripped)
        return self._stops.trip(capsule, reading, self._indices, self._probes.seen())

    def _compute(self, capsule: StepState, observer: Observer | None) -> StepResult:
        """Forward and backward, or the user's train_step, on the training's own batches."""
        self.runner.own, capsule.own = capsule.own or [], None
        try:
            return self._computed(capsule, self.runner.own or capsule.batches, observer)
        finally:
            self.runner.own = []

    def _computed(
        self, capsule: StepState, batches: list[Any], observer: Observer | None
    ) -> StepResult:
        followed = None if self.requested.wants(capsule.step) else self._graph.follow(capsule)
        calls = self.amp.calls.at(capsule.step) if observer is not None else nullcontext()
        if followed is None:
            with calls:
                return run_step(self.runner, batches, observer=observer)
        with followed.watching(live=True), calls:
            result = run_step(
                self.runner,
                batches,
                on_loss=followed.on_loss,
                on_gradients=followed.note_gradients if observer is not None else None,
                observer=observer,
            )
        followed.note_gradients()
        return result

    def _end(self, trouble: Stop, steps: int) -> Stop:
        """Tells the watchers that the run is over. Returns what ended it, maybe a skipped step."""
        clean = trouble.trip is None and trouble.failure is None and steps > 0
        if clean and not self.moved_elsewhere:
            trouble.optimizers = self._stops.hurt_by_optimizer()
        hurried = self._stops.interrupted or self._interrupts.broke_off
        last = None if hurried else self._last
        end = RunEnd(last, steps, self.course.step_seconds, clean, self.looks)
        try:
            for watch in self.watches:
                watch.at_end(end)
            self.looks.run(Stage.END, passes_over=is_own)
            if end.sick_skip is not None and trouble.trip is None:
                trouble = self._stops.skip(end.sick_skip)
            end.failed, end.growth = None if hurried else trouble.capsule, trouble.growth
            end.whole = clean and trouble.trip is None and not trouble.optimizers
            self.looks.run(Stage.SUMMARY, passes_over=is_own)
        except KeyboardInterrupt:
            self.looks.interrupt()
        self._interrupts.asked |= self.looks.interrupted  # what was seen until now is told
        return trouble

    def _capsule(self, step: int, batches: list[Any]) -> StepState:
        at = time.perf_counter()
        capsule = self.keeper.take(step, batches)
        if self._driver.keeps_gradients and any(p.grad is not None for _, p in self._named):
            capsule.grads = [
                None if p.grad is None else p.grad.detach().clone() for _, p in self._named
            ]
        if self.runner.observing and not self.recipe.optimizers:
            # nothing tells when the weights are about to move
            capsule.weights = copy_weights(self._named)
        self.course.own_seconds += time.perf_counter() - at
        return capsule

    def another(self, capsule: StepState) -> tuple[str, list[Any], RandomState | None] | None:
        """A batch other than the capsule's: that of the last good step before it, else the next one
        of the data. Only when the run is over."""
        past = self.checkpoints.good_before(capsule.step, self.course.losses)
        if past is not None:
            return f"that of step {past.step}", past.batches, past.rng
        with state_preserved(self.runner, self.keeper):
            unseen = self._feed.unseen(self._micro_batches)
        return ("the next one", unseen, None) if unseen else None

    def end(self) -> None:
        """When nothing is run again any more: other ranks are heard, a loader's workers go."""
        self.alone.end()
        self._feed.close()

    def _over(self) -> None:
        """No further step is the training's: those that follow are run again, without a word to
        other ranks."""
        self.brief.write_down()
        here().examining()
        self.looks.begin(self.course.usual_seconds)
        self.alone.begin()

    def _ranges(self, trouble: Stop, steps: int) -> tuple[RangeFacts, ...]:
        """Every index out of range raises, but for devices that read whatever is there: where the
        step went on, the code had caught it."""
        if (trouble.failure and not steps) or self.runner.device.type in READS_ANYTHING:
            return self._graph.ranges or trouble.ranges
        return trouble.ranges

    def _outcome(self, trouble: Stop, sick: tuple[ParameterFacts, ...], steps: int) -> Outcome:
        course = self.course
        facts: dict[str, Any] = {"ranges": self._ranges(trouble, steps)}
        if not (trouble.trip or sick):
            with telling("the optimizers' parameters", self._notes):
                facts["ownership"] = self._graph.ownership.facts(len(course.losses))
        for watch in self.watches:
            facts |= watch.facts()
        skipped = next((kept.capsule for kept in self.amp.skips.kept()), None)
        return Outcome(
            evidence=gather(self.runner, course, trouble, sick, steps, self.build, facts),
            steps_run=steps,
            losses=[] if course.lossless else course.losses,
            grad_norms=course.grad_norms,
            skipped=course.skipped,
            interrupted=self._interrupts.asked,
            capsule=trouble.capsule,
            start=trouble.capsule or skipped or self._last,
            overhead=course.overhead,
            samples_per_second=course.samples_per_second,
            checkpoints=self.checkpoints,
            indices=self._indices if self._last and trouble.capsule is self._last else None,
            notes=sum((w.notes for w in self.watches), [*self._notes, *self._stops.notes]),
            trace_files=self.requested.files,
            frames=self.requested.tables,
            magnitudes=self.requested.magnitudes,
        )
