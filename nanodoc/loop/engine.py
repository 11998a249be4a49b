"""The engine: runs the steps, reads the tripwire, and calls the examiner when it fires."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from nanodoc.errors import UserCodeError, chosen_end
from nanodoc.examine.exception import FailureLook, make_room
from nanodoc.examine.initial_state import optimizer_facts, sick_before_start
from nanodoc.examine.late_errors import late_error, late_failure
from nanodoc.examine.non_finite import Examiner
from nanodoc.examine.traceback import describe_failure
from nanodoc.facts.evidence import Trip
from nanodoc.facts.failure_kinds import (
    about_an_index,
    device_is_lost,
    kept_from_kernel,
    out_of_memory,
    says_device_is_lost,
)
from nanodoc.facts.graph import graph_failure
from nanodoc.facts.ops import OptimizerFacts, ParameterFacts
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.loop.history import History
from nanodoc.loop.interrupts import Interrupts
from nanodoc.loop.observed_step import ObservedStep
from nanodoc.loop.outcome import Course, Outcome, Trouble, gather, without_device
from nanodoc.measure.gradients import (
    Scratch,
    Vitals,
    nonfinite_tensors,
    packed_vitals,
    really_nonfinite,
)
from nanodoc.progress import Now
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.batch_source import Feed
from nanodoc.replay.local_collectives import Alone
from nanodoc.replay.observer import Observer
from nanodoc.replay.rng import RandomState
from nanodoc.replay.sandbox import put_back
from nanodoc.replay.step import StepResult, StepRunner, run_step
from nanodoc.replay.step_state import Keeper, StepCapsule
from nanodoc.replay.traced_replay import Replayer
from nanodoc.replay.weight_history import Checkpoints
from nanodoc.tensors.nested import move_module
from nanodoc.trace.functions import READS_ANYTHING
from nanodoc.watch.amp import AmpWatch, SickSkip
from nanodoc.watch.grad_graph import GraphWatch
from nanodoc.watch.learning import HealthWatch, per_pass
from nanodoc.watch.probes import SpotWatch
from nanodoc.watch.requested_steps import LookOptions, Looks
from nanodoc.watch.sampling import Sampler

# A train_step may skip a bad batch on purpose; more than this many in a row are no longer an
# exception.
_DELIBERATE_SKIPS = 5
_SCHEDULE_OVER = "Tried to step"  # as OneCycleLR says


class Engine:
    """Runs one recipe on one device for a number of steps, watching it."""

    def __init__(
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
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        move_module(recipe.model, device, recipe.optimizers)
        self.recipe = recipe
        self._build = build_facts or BuildFacts()
        self.runner = StepRunner(recipe, device, amp_dtype)
        self.keeper = Keeper(recipe, device)
        self.replayer = replayer = Replayer(self.runner, self.keeper)
        self.examiner = Examiner(replayer)
        self.checkpoints = Checkpoints(
            self.runner, self.keeper, every=checkpoint_every, enabled=checkpoints
        )
        self._graph = GraphWatch(
            self.runner, self.keeper, self._build, leak_check=leak_check, range_check=range_check
        )
        self.amp = AmpWatch(self.runner, self.keeper, replayer, self._build)
        compiled = self._build.is_compiled(recipe.model)
        sampler = Sampler(
            recipe.model,
            recipe.optimizers,
            every=sample_every,
            hooks=lambda: not compiled and not self._graph.fused(),
            enabled=samples,
        )
        self.health = HealthWatch(
            self.runner, self.keeper, self._build, self.amp.calls.conduct, self.checkpoints, sampler
        )
        self.looks = Looks(
            self.runner, self.keeper, replayer, self.amp, looks or LookOptions(), compiled=compiled
        )
        self._spots = SpotWatch()
        self._named = list(recipe.model.named_parameters())
        self._devices = {device, *(p.device for _, p in self._named)}
        self._steps = steps
        self._progress = progress
        self._open_ended = open_ended  # nobody said how many steps to run
        self._feed = Feed(recipe.data)
        self.alone = Alone(recipe)
        self._failures = FailureLook(self.runner, self.keeper, self._build, self._feed)
        self._scratch = Scratch()
        self.course = Course(self.runner, history)
        self._skips_in_a_row = 0
        self._interrupts = Interrupts()
        self._notes: list[tuple[str, str]] = []
        self._indices: list[int] | None = None
        self._last: StepCapsule | None = None
        self._micro_batches = 1 if self.runner.observing else recipe.accumulate
        # until a step shows that it clears them
        self._keeps_gradients = recipe.train_step is not None
        self._optimizer_steps = max(1, len(recipe.optimizers))

    # -- the loop ----------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Runs until the steps are done, the data ends, something is found, or the user
        interrupts."""
        sick = sick_before_start(self.recipe.model, self._build)
        hopeless = any(one.facts.nonfinite for one in sick)
        trouble = Trouble()
        step = 0
        self._graph.begin()
        with (
            self._interrupts,
            self._graph.watching(),
            self.amp.watching(),
            self._spots.listening(),
            self.health.watching(),
        ):
            while step < self._steps and not (
                self._interrupts.asked or hopeless or self.amp.skips.hopeless
            ):
                trouble_or_end = self._step(step)
                if trouble_or_end is None:
                    step += 1
                    continue
                if isinstance(trouble_or_end, Trouble):
                    trouble = trouble_or_end
                    step += trouble.failure is None
                break
        self._over()
        if trouble.failure is None and (late := late_error(self._devices)) is not None:
            trouble = self._lost(max(step - 1, 0), late)
        if trouble.failure is not None and (
            device_is_lost(trouble.failure) or kept_from_kernel(trouble.failure)
        ):
            return without_device(
                self.course, trouble, step, self._graph.ranges, interrupted=self._interrupts.asked
            )
        if hopeless:
            # the first step's start, of a run that would be no use
            unseen = self._feed.unseen(self._micro_batches)
            self._last = self._capsule(0, unseen) if unseen else None
        if trouble.trip is None and trouble.failure is None and step:
            trouble.optimizers = self._hurt_by_optimizer()
            self._graph.at_end(self._last)
            skip = self.amp.at_end(self._last)
            if skip is not None:
                trouble = self._examine_skip(skip)
        growth = (
            next(
                (
                    birth.growth
                    for birth in trouble.examined.births
                    if birth.op.upcast_absmax is not None
                ),
                (),
            )
            if trouble.examined
            else ()
        )
        self.looks.at_end(
            trouble.capsule or self._last, failed=trouble.capsule is not None, growth=growth
        )
        # every index out of range raises, but for devices that read whatever is there: where the
        # step went on, the code had caught it
        seen = (
            self._graph.ranges
            if (trouble.failure is not None and step == 0)
            or self.runner.device.type in READS_ANYTHING
            else ()
        )
        self.health.ranges = seen or self.health.ranges
        whole = (
            trouble.capsule is None
            and trouble.failure is None
            and not trouble.optimizers
            and step > 0
        )
        self.health.at_end(
            self._last,
            whole=whole,
            per_pass=per_pass(self.recipe.data),
            step_seconds=self.course.step_seconds,
            steps=step,
        )
        return self._outcome(trouble, tuple(sick), step)

    def now(self) -> Now:
        """The vital signs so far."""
        course, health = self.course, self.health
        waited = health.load_seconds / max(health.load_seconds + course.step_seconds, 1e-9)
        return Now(
            losses=course.losses,
            grad_norms=course.grad_norms,
            rates=health.highest_rates,
            samples_per_second=course.samples_per_second,
            update_ratios=[
                math.hypot(*one.group_ratios) for one in health.sampler.samples if one.group_ratios
            ],
            load_share=waited,
        )

    def _step(self, step: int) -> Trouble | str | None:
        """One step; None to go on, a trouble, or "end" when the data has run out."""
        try:
            return self._watched_step(step)
        except RuntimeError as error:
            # of ours: where it waited for the device, it was told of an error of the training's
            if not says_device_is_lost(error):
                raise
            return self._lost(step, error)

    def _watched_step(self, step: int) -> Trouble | str | None:
        crumbs = here()
        crumbs.at(step, "data")
        try:
            passes = self._feed.passes
            at = time.perf_counter()
            batches, self._indices = self._feed.step(self._micro_batches)
            self.health.loaded(time.perf_counter() - at)
            if batches is None:
                self._notes.append(
                    (
                        "further steps",
                        f"the data ended after {step} steps, and begins no further pass",
                    )
                )
                return "end"
            began = time.perf_counter()
            if self.recipe.scheduler_interval == "epoch" and self._feed.passes > passes:
                self.runner.schedule()
            capsule = self._capsule(step, batches)
            self._graph.before_step(capsule)
            self.health.before_step(step)
            self._spots.begin_step()
            self.course.own_seconds += self.checkpoints.before_step(capsule)
            before, self._last = self._last, capsule
        except UserCodeError as error:
            if chosen_end(error):
                return self._left(step)
            failure = describe_failure(error)
            note_failure(crumbs, failure, step)
            self._over()
            return Trouble(
                failure=failure,
                crash=None if device_is_lost(failure) else self._failures.at_batch(failure),
            )
        try:
            with (
                self._graph.first_call(step),
                self.looks.watching(capsule),
                self.health.sampler.watching(step),
            ):
                trouble = (
                    self._observe(capsule, began)
                    if self.runner.observing
                    else self._drive(capsule, began)
                )
        except UserCodeError as error:
            if self._open_ended and _SCHEDULE_OVER in str(error.cause):
                self._notes.append(
                    (
                        "further steps",
                        f"the learning rate's schedule ended after {step} steps, and nobody asked "
                        "for "
                        "more",
                    )
                )
                return "end"
            if chosen_end(error):
                self._last = before  # a step that leaves is no step to be looked at
                return self._left(step)
            return self._examine_failure(capsule, error)
        if trouble is None:
            sampler, seconds = self.health.sampler, time.perf_counter() - began
            self.course.looked(sampler.inside, sampler.behind)
            sampler.after_step(seconds - sampler.inside - sampler.behind)
            self.checkpoints.after_step(self.course.losses[-1], seconds)
        crumbs.finished(step, self.course.losses[-1], self.course.grad_norms[-1])
        if self._progress is not None:
            self._progress(step, self.course.losses[-1])
        return trouble

    def _left(self, step: int) -> str:
        self._notes.append(("further steps", f"the training left by sys.exit in step {step}"))
        return "end"

    def _drive(self, capsule: StepCapsule, began: float) -> Trouble | None:
        losses = self._compute(capsule).losses
        at = time.perf_counter()
        reading = self.amp.reading()
        flag = self._spots.flag()
        extras = [*(reading.tensors if reading else ()), *((flag,) if flag is not None else ())]
        vitals = packed_vitals(losses, self._named, extras, self._scratch)
        if flag is not None and vitals.extras[-1] and vitals.finite:
            return self._examine_trip(capsule, vitals, [])
        if not vitals.finite:
            bad = really_nonfinite(self._named)
            if not math.isfinite(vitals.loss) or (bad and reading is None):
                return self._examine_trip(capsule, vitals, bad)
        scaler_step = self.amp.note(capsule, reading, vitals.extras)
        norms = dict(zip(vitals.names, vitals.norms, strict=True))
        self.health.sampler.gradients()
        self.course.own_seconds += time.perf_counter() - at
        began += self._graph.after_backward(capsule, norms)
        self.runner.update()
        if self.recipe.scheduler_interval == "step":
            self.runner.schedule()
        self.health.after_step(capsule.step, vitals)
        self.course.step(
            capsule,
            vitals,
            scaler_step,
            time.perf_counter() - began,
            left_out=False,
            extra=self.health.line(),
        )
        return None

    def _compute(self, capsule: StepCapsule, observer: Observer | None = None) -> StepResult:
        """The step's forward and backward, or the user's train_step under `observer`."""
        runner, batches = self.runner, capsule.batches
        followed = None if self.looks.wants(capsule.step) else self._graph.follow(capsule)
        calls = self.amp.calls.at(capsule.step) if observer is not None else nullcontext()
        if followed is None:
            on_gradients = self.health.sampler.gradients if observer is not None else None
            with calls:
                return run_step(runner, batches, on_gradients=on_gradients, observer=observer)
        on_gradients = followed.note_gradients
        with followed.watching(live=True), calls:
            result = run_step(
                runner,
                batches,
                on_loss=followed.on_loss,
                on_gradients=on_gradients if observer is not None else None,
                observer=observer,
            )
        followed.note_gradients()
        return result

    def _observe(self, capsule: StepCapsule, began: float) -> Trouble | None:
        observer = Observer(self.recipe, self._named, self._optimizer_steps).watch(capsule)
        observed = ObservedStep(observer, self.amp, self._spots)
        result = self._compute(capsule, observer).returned
        self._keeps_gradients = not observer.cleared_before_backward
        self._optimizer_steps = max(1, observer.optimizer_steps)
        at = time.perf_counter()
        vitals, final = observed.vitals(result, self._named)
        scaler_step = self.amp.note(capsule, observed.reading, vitals.extras)
        self.course.own_seconds += time.perf_counter() - at
        tripped = observer.tripped or (final if not math.isfinite(final.loss) else None)
        left_out = tripped is not None and observer.optimizer_steps == 0
        by_scaler = bool(self.amp.calls.left_out)
        # the user's own code saw the bad loss and did not step on it; only doing so again and again
        # is sick
        if left_out and not by_scaler:
            self._skips_in_a_row += 1
        if tripped is not None and (
            by_scaler or not (left_out and self._skips_in_a_row <= _DELIBERATE_SKIPS)
        ):
            bad = [
                name
                for name, norm in zip(tripped.names, tripped.norms, strict=True)
                if not math.isfinite(norm)
            ]
            losses = [float(loss) for loss in observer.losses]
            # as the replay counts: every backward of the step
            told = sum(losses) / len(losses) if losses else tripped.loss
            return self._examine_trip(capsule, tripped, bad, told)
        if observed.probed_bad and tripped is None:
            return self._examine_trip(capsule, final, [])
        if self.recipe.scheduler_interval == "step":
            self.runner.schedule()
        norms = {
            **dict.fromkeys(observer.with_gradient, 1.0),
            **dict(zip(vitals.names, vitals.norms, strict=True)),
        }
        began += self._graph.after_backward(capsule, norms)
        if not left_out:
            self._skips_in_a_row = 0
        self.health.after_step(capsule.step, vitals)
        self.course.step(
            capsule,
            vitals,
            scaler_step,
            time.perf_counter() - began,
            left_out=left_out,
            extra=self.health.line(),
        )
        return None

    # -- parts of a step ---------------------------------------------------------------------------

    def _capsule(self, step: int, batches: list[Any]) -> StepCapsule:
        at = time.perf_counter()
        capsule = self.keeper.take(step, batches)
        if self._keeps_gradients and any(p.grad is not None for _, p in self._named):
            capsule.grads = [
                None if p.grad is None else p.grad.detach().clone() for _, p in self._named
            ]
        self.course.own_seconds += time.perf_counter() - at
        return capsule

    def another(self, capsule: StepCapsule) -> tuple[str, list[Any], RandomState | None] | None:
        """A batch other than the capsule's: that of the last good step before it, else the next one
        of the data. Only when the run is over."""
        for past in reversed(self.checkpoints.past):
            if (
                past.step < capsule.step
                and past.intact
                and math.isfinite(self.course.losses[past.step])
            ):
                return f"that of step {past.step}", past.batches, past.rng
        with put_back(self.runner, self.keeper):
            unseen = self._feed.unseen(self._micro_batches)
        return ("the next one", unseen, None) if unseen else None

    def end(self) -> None:
        """When nothing is run again any more: other ranks are heard again, and a loader's workers
        go."""
        self.alone.end()
        self._feed.close()

    def _over(self) -> None:
        """No further step is the training's: those that follow are run again, without a word to
        other ranks."""
        here().examining()
        self.alone.begin()

    # -- trouble -----------------------------------------------------------------------------------

    def _examine_trip(
        self, capsule: StepCapsule, vitals: Vitals, bad: list[str], told: float | None = None
    ) -> Trouble:
        self._over()
        self.course.tripped(capsule, vitals)
        trip = Trip(
            step=capsule.step,
            phase="backward" if math.isfinite(vitals.loss) else "forward",
            loss=vitals.loss,
            grad_norm=vitals.grad_norm,
            bad_parameters=tuple(bad),
            gradients_finite=not bad,
            zero_gradients=not bad
            and bool(vitals.norms)
            and all(norm == 0 for norm in vitals.norms),
        )
        examined = self.examiner.examine(
            capsule, vitals.loss if told is None else told, vitals.grad_norm, self._indices
        )
        # weights that were already bad when the step began: the optimizer of the step before made
        # them
        optimizers = self._hurt_by_optimizer() if capsule.step else ()
        probed = self._spots.facts()
        return Trouble(
            trip,
            None,
            capsule,
            examined,
            optimizers,
            probed if any(one.bad for one in probed) else (),
        )

    def _examine_skip(self, sick: SickSkip) -> Trouble:
        """A skipped step that is sick without the loss scale too, looked at when the run is
        over."""
        with put_back(self.runner, self.keeper):
            examined = self.examiner.examine(sick.capsule, sick.loss, None)
        phase = "backward" if math.isfinite(sick.loss) else "forward"
        trip = Trip(
            step=sick.capsule.step,
            phase=phase,
            loss=sick.loss,
            grad_norm=None,
            bad_parameters=sick.bad_parameters,
            gradients_finite=False,
        )
        return Trouble(trip, None, sick.capsule, examined)

    def _examine_failure(self, capsule: StepCapsule, error: UserCodeError) -> Trouble:
        failure = describe_failure(error)
        note_failure(here(), failure, capsule.step)
        self._over()
        if not device_is_lost(failure) and (late := late_error(self._devices)) is not None:
            return self._lost(capsule.step, late)
        if out_of_memory(failure):
            self._graph.let_go()
            make_room(error, self.runner.device)
        examined = None
        if device_is_lost(failure) or kept_from_kernel(failure):
            return Trouble(
                None, failure, capsule, crash=self._failures.at_glance(capsule, self._indices)
            )
        if graph_failure(failure.message) is not None:
            self._graph.at_failure(capsule, error)
        elif error.phase in ("forward", "backward") and not out_of_memory(failure):
            examined = self.examiner.examine(capsule, None, None, self._indices)
        crash, ranges = self._failures.at_step(failure, capsule, self._indices)
        self.health.ranges = ranges if about_an_index(failure) else ()
        return Trouble(None, failure, capsule, examined, crash=crash)

    def _lost(self, step: int, error: BaseException) -> Trouble:
        """The device was lost to a kernel of step `step`, and a call that isn't the training's was
        told so."""
        failure = late_failure(error, self.runner.phase)
        note_failure(here(), failure, step)
        self._over()
        capsule = self._last if self._last is not None and self._last.step == step else None
        return Trouble(
            None,
            failure,
            capsule,
            crash=self._failures.at_glance(capsule, self._indices) if capsule is not None else None,
        )

    def _hurt_by_optimizer(self) -> tuple[OptimizerFacts, ...]:
        bad = nonfinite_tensors(self._named)
        return optimizer_facts(self.recipe, set(bad), self._build) if bad else ()

    def _outcome(self, trouble: Trouble, sick: tuple[ParameterFacts, ...], steps: int) -> Outcome:
        course = self.course
        evidence = gather(
            self.runner,
            course,
            trouble,
            sick,
            steps,
            self._graph,
            self.amp,
            self.health,
            self._build,
            grad_off=not torch.is_grad_enabled(),
        )
        return Outcome(
            evidence=evidence,
            steps_run=steps,
            losses=course.losses,
            grad_norms=course.grad_norms,
            skipped=course.skipped,
            interrupted=self._interrupts.asked,
            capsule=trouble.capsule,
            start=trouble.capsule
            or next((kept.capsule for kept in self.amp.skips.kept()), None)
            or self._last,
            overhead=course.overhead,
            samples_per_second=course.samples_per_second,
            checkpoints=self.checkpoints,
            indices=self._indices
            if trouble.capsule is not None and trouble.capsule is self._last
            else None,
            notes=self._notes
            + self._graph.notes
            + self.amp.notes
            + self.looks.notes
            + self.health.notes,
            trace_files=self.looks.files,
            frames=self.looks.tables,
        )
