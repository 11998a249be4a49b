"""The engine: runs the steps, reads the tripwire, and calls the examiner when it fires."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nanodoc.engine.batches import leading_size
from nanodoc.engine.build_facts import BuildFacts
from nanodoc.engine.capsule import Keeper, StepCapsule
from nanodoc.engine.examination import Examined, Examiner
from nanodoc.engine.failure import describe_failure
from nanodoc.engine.feed import Feed
from nanodoc.engine.graph_watch import GraphWatch
from nanodoc.engine.history import History
from nanodoc.engine.observer import Observer
from nanodoc.engine.state_check import optimizer_facts, sick_before_start
from nanodoc.engine.step import StepRunner
from nanodoc.engine.tracing import write_trace
from nanodoc.errors import UserCodeError
from nanodoc.evidence import Evidence, Failure, OptimizerFacts, ParameterFacts, Trip
from nanodoc.graph_evidence import graph_failure
from nanodoc.probes.gradients import Scratch, Vitals, nonfinite_tensors, packed_vitals, really_nonfinite
from nanodoc.recipe.recipe import Recipe

# A train_step may skip a bad batch on purpose; more than this many in a row are no longer an exception.
_DELIBERATE_SKIPS = 5


@dataclass(slots=True)
class Outcome:
    """How a run ended. `capsule` is the tripped step's start, for the snapshot."""

    evidence: Evidence
    steps_run: int
    losses: list[float]
    grad_norms: list[float]
    skipped: int
    interrupted: bool
    capsule: StepCapsule | None
    overhead: float | None
    notes: list[tuple[str, str]] = field(default_factory=list)
    trace_files: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Trouble:
    """What ended the run early."""

    trip: Trip | None = None
    failure: Failure | None = None
    capsule: StepCapsule | None = None
    examined: Examined | None = None
    optimizers: tuple[OptimizerFacts, ...] = ()


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
        trace_steps: tuple[int, ...] = (),
        trace_folder: Path | None = None,
        leak_check: bool = True,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        recipe.model.to(device)
        self.recipe = recipe
        self.runner = StepRunner(recipe, device, amp_dtype)
        self._keeper = Keeper(recipe, device)
        self.examiner = Examiner(self.runner, self._keeper)
        self._graph = GraphWatch(self.runner, self._keeper, build_facts or BuildFacts(), leak_check=leak_check)
        self._named = list(recipe.model.named_parameters())
        self._steps = steps
        self._history = history
        self._build_facts = build_facts
        self._trace_steps = set(trace_steps)
        self._trace_folder = trace_folder
        self._progress = progress
        self._feed = Feed(recipe.data)
        self._scratch = Scratch()
        self._losses: list[float] = []
        self._grad_norms: list[float] = []
        self._skipped = 0
        self._skips_in_a_row = 0
        self._interrupted = False
        self._own_seconds = 0.0
        self._step_seconds = 0.0
        self._notes: list[tuple[str, str]] = []
        self._trace_files: list[str] = []
        self._indices: list[int] | None = None
        self._last: StepCapsule | None = None
        self._keeps_gradients = recipe.train_step is not None  # until a step shows that it clears them
        self._optimizer_steps = max(1, len(recipe.optimizers))

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Runs until the steps are done, the data ends, something is found, or the user interrupts."""
        facts = self._build_facts or BuildFacts()
        sick = sick_before_start(self.recipe.model, facts)
        hopeless = any(one.facts.nonfinite for one in sick)
        trouble = _Trouble()
        step = 0
        self._graph.begin()
        with self._interruptible(), self._graph.watching():
            while step < self._steps and not self._interrupted and not hopeless:
                trouble_or_end = self._step(step)
                if trouble_or_end is None:
                    step += 1
                    continue
                if isinstance(trouble_or_end, _Trouble):
                    trouble = trouble_or_end
                    step += trouble.failure is None
                break
        if trouble.trip is None and trouble.failure is None and step:
            trouble.optimizers = self._hurt_by_optimizer(facts)
            self._graph.at_end(self._last)
        return self._outcome(trouble, tuple(sick), step)

    def _step(self, step: int) -> _Trouble | str | None:
        """One step; None to go on, a trouble, or "end" when the data has run out."""
        try:
            passes = self._feed.passes
            batches = self._next_batches()
            if batches is None:
                self._notes.append(("further steps", f"the data is a one-shot iterator and ended after {step} steps"))
                return "end"
            began = time.perf_counter()
            if self.recipe.scheduler_interval == "epoch" and self._feed.passes > passes:
                self.runner.schedule()
            capsule = self._capsule(step, batches)
            if step in self._trace_steps:
                self._trace(capsule)
                began = time.perf_counter()
            self._graph.before_step(capsule)
            self._last = capsule
        except UserCodeError as error:
            return _Trouble(failure=describe_failure(error))
        try:
            with self._graph.first_call(step):
                trouble = self._observe(capsule, began) if self.runner.observing else self._drive(capsule, began)
        except UserCodeError as error:
            return self._examine_failure(capsule, error)
        if self._progress is not None:
            self._progress(step, self._losses[-1])
        return trouble

    def _drive(self, capsule: StepCapsule, began: float) -> _Trouble | None:
        losses = self._compute(capsule)
        at = time.perf_counter()
        scaler = self.recipe.scaler
        scale = getattr(scaler, "_scale", None)
        vitals = packed_vitals(losses, self._named, [scale] if isinstance(scale, torch.Tensor) else [], self._scratch)
        skipped = False
        if not vitals.finite:
            bad = really_nonfinite(self._named)
            if not math.isfinite(vitals.loss):
                return self._examine_trip(capsule, vitals, bad)
            if bad and (scaler is None or self._fails_unscaled(capsule)):
                return self._examine_trip(capsule, vitals, bad)
            skipped = bool(bad)
        norms = dict(zip(vitals.names, vitals.norms, strict=True))
        self._own_seconds += time.perf_counter() - at
        began += self._graph.after_backward(capsule, norms)
        self.runner.update()
        if self.recipe.scheduler_interval == "step":
            self.runner.schedule()
        self._note_step(capsule, vitals, skipped, began)
        return None

    def _compute(self, capsule: StepCapsule) -> list[torch.Tensor]:
        followed = self._graph.follow(capsule)
        if followed is None:
            return self.runner.compute(capsule.batches)
        with followed.watching(live=True):
            losses = self.runner.compute(capsule.batches, followed.on_loss)
        followed.note_gradients()
        return losses

    def _call_train_step(self, capsule: StepCapsule, observer: Observer) -> Any:
        followed = self._graph.follow(capsule)
        if followed is None:
            with observer:
                return self.runner.call_train_step(capsule.batches[0])
        observer.on_loss, observer.on_gradients = followed.on_loss, followed.note_gradients
        with followed.watching(live=True), observer:
            result = self.runner.call_train_step(capsule.batches[0])
        if not observer.losses and isinstance(result, torch.Tensor) and result.numel() == 1:
            followed.on_loss(result)
        followed.note_gradients()
        return result

    def _observe(self, capsule: StepCapsule, began: float) -> _Trouble | None:
        observer = Observer(self.recipe, self._named, self._optimizer_steps).watch(capsule)
        result = self._call_train_step(capsule, observer)
        self._keeps_gradients = not observer.cleared_before_backward
        self._optimizer_steps = max(1, observer.optimizer_steps)
        at = time.perf_counter()
        returned = [result.detach()] if isinstance(result, torch.Tensor) and result.numel() == 1 and not result.is_complex() else []
        if len(observer.vitals) == 1 and len(observer.losses) == 1 and returned and returned[0].data_ptr() == observer.losses[0].data_ptr():
            final = observer.vitals[0]  # the loss returned is the one that was read before the optimizer stepped
        else:
            final = packed_vitals(returned or observer.losses[-1:], [] if observer.vitals else self._named)
        vitals = Vitals(
            loss=final.loss,
            grad_norm=math.hypot(*(v.grad_norm for v in observer.vitals)) if observer.vitals else final.grad_norm,
            norms=tuple(n for v in observer.vitals for n in v.norms) or final.norms,
            names=tuple(n for v in observer.vitals for n in v.names) or final.names,
        )
        self._own_seconds += time.perf_counter() - at
        tripped = observer.tripped or (final if not math.isfinite(final.loss) else None)
        left_out = tripped is not None and observer.optimizer_steps == 0
        if left_out:  # the user's own code saw the bad loss and did not step on it; only doing so again and again is sick
            self._skips_in_a_row += 1
        if tripped is not None and not (left_out and self._skips_in_a_row <= _DELIBERATE_SKIPS):
            bad = [name for name, norm in zip(tripped.names, tripped.norms, strict=True) if not math.isfinite(norm)]
            losses = [float(loss) for loss in observer.losses]
            told = sum(losses) / len(losses) if losses else tripped.loss  # as the replay counts: every backward of the step
            return self._examine_trip(capsule, tripped, bad, told)
        skipped = left_out or (self.recipe.scaler is not None and observer.optimizer_steps == 0)
        if self.recipe.scheduler_interval == "step":
            self.runner.schedule()
        norms = {**dict.fromkeys(observer.with_gradient, 1.0), **dict(zip(vitals.names, vitals.norms, strict=True))}
        began += self._graph.after_backward(capsule, norms)
        self._note_step(capsule, vitals, skipped, began)
        return None

    # -- parts of a step -------------------------------------------------------------------------------------------

    def _next_batches(self) -> list[Any] | None:
        batches: list[Any] = []
        indices: list[int] | None = []
        for _ in range(1 if self.runner.observing else self.recipe.accumulate):
            drawn = self._feed.next()
            if drawn is None:
                break
            batches.append(drawn[0])
            indices = None if drawn[1] is None or indices is None else indices + drawn[1]
        self._indices = indices or None
        return batches or None

    def _capsule(self, step: int, batches: list[Any]) -> StepCapsule:
        at = time.perf_counter()
        capsule = self._keeper.take(step, batches)
        if self._keeps_gradients and any(p.grad is not None for _, p in self._named):
            capsule.grads = [None if p.grad is None else p.grad.detach().clone() for _, p in self._named]
        self._own_seconds += time.perf_counter() - at
        return capsule

    def _fails_unscaled(self, capsule: StepCapsule) -> bool:
        """The experiment that tells a calibrating loss scale from a real failure: the same step without the scale.

        Tried on the 1st, 2nd, 4th, 8th… skip in a row, since each costs a step. The run goes on as if it had not been.
        """
        self._skips_in_a_row += 1
        if self._skips_in_a_row & (self._skips_in_a_row - 1):
            return False
        after = self._keeper.take(capsule.step, [], apart=True)
        grads = [p.grad for _, p in self._named]
        self._keeper.restore(capsule)
        losses = self.runner.compute(capsule.batches, scaled=False)
        sick = not packed_vitals(losses, self._named).finite and bool(really_nonfinite(self._named))
        self._keeper.restore(after)
        for (_, parameter), grad in zip(self._named, grads, strict=True):
            parameter.grad = grad
        return sick

    def _note_step(self, capsule: StepCapsule, vitals: Vitals, skipped: bool, began: float) -> None:
        seconds = time.perf_counter() - began
        self._step_seconds += seconds
        self._skipped += skipped
        self._skips_in_a_row = self._skips_in_a_row if skipped else 0
        self._losses.append(vitals.loss)
        self._grad_norms.append(vitals.grad_norm)
        if self._history is None:
            return
        at = time.perf_counter()
        optimizers = self.recipe.optimizers
        size = sum(leading_size(batch) for batch in capsule.batches)
        self._history.step(
            step=capsule.step,
            loss=vitals.loss,
            grad_norm=vitals.grad_norm,
            lr=float(optimizers[0].param_groups[0]["lr"]) if optimizers else None,
            scale=vitals.extras[0] if vitals.extras else None,
            skipped=skipped,
            seconds=seconds,
            samples_per_second=size / seconds if size else None,
        )
        self._own_seconds += time.perf_counter() - at

    def _trace(self, capsule: StepCapsule) -> None:
        """`--trace-steps`: the step's ops are written to a file; the step itself then runs as always."""
        grads = [p.grad for _, p in self._named]
        replay = self.examiner.replay_and_rewind(capsule)
        for (_, parameter), grad in zip(self._named, grads, strict=True):
            parameter.grad = grad
        if self._trace_folder is not None:
            path = write_trace(replay.trace, self._trace_folder, capsule.step)
            self._trace_files.append(str(path))

    # -- trouble ---------------------------------------------------------------------------------------------------

    def _examine_trip(self, capsule: StepCapsule, vitals: Vitals, bad: list[str], told: float | None = None) -> _Trouble:
        loss_ok = math.isfinite(vitals.loss)
        self._losses.append(vitals.loss)
        self._grad_norms.append(vitals.grad_norm)
        if self._history is not None:
            self._history.step(step=capsule.step, loss=vitals.loss, grad_norm=vitals.grad_norm, tripped=True)
        trip = Trip(
            step=capsule.step,
            phase="backward" if loss_ok else "forward",
            loss=vitals.loss,
            grad_norm=vitals.grad_norm,
            bad_parameters=tuple(bad),
            gradients_finite=not bad,
            zero_gradients=not bad and bool(vitals.norms) and all(norm == 0 for norm in vitals.norms),
        )
        examined = self.examiner.examine(capsule, vitals.loss if told is None else told, vitals.grad_norm, self._indices)
        # weights that were already bad when the step began: the optimizer of the step before made them
        optimizers = self._hurt_by_optimizer(self._build_facts or BuildFacts()) if capsule.step else ()
        return _Trouble(trip, None, capsule, examined, optimizers)

    def _examine_failure(self, capsule: StepCapsule, error: UserCodeError) -> _Trouble:
        failure = describe_failure(error)
        examined = None
        if graph_failure(failure.message) is not None:
            self._graph.at_failure(capsule, error)
        elif error.phase in ("forward", "backward"):
            examined = self.examiner.examine(capsule, None, None, self._indices)
        return _Trouble(None, failure, capsule, examined)

    def _hurt_by_optimizer(self, facts: BuildFacts) -> tuple[OptimizerFacts, ...]:
        bad = nonfinite_tensors(self._named)
        return optimizer_facts(self.recipe, set(bad), facts) if bad else ()

    def _outcome(self, trouble: _Trouble, sick: tuple[ParameterFacts, ...], steps: int) -> Outcome:
        examined = trouble.examined
        switched_off = self._graph.switched_off_at()
        evidence = Evidence(
            steps_run=steps,
            trip=trouble.trip,
            births=examined.births if examined else (),
            leaves=examined.leaves if examined else (),
            sick_parameters=sick,
            optimizers=trouble.optimizers,
            optimizer_step=len(self._losses) - (2 if trouble.trip else 1) if trouble.optimizers else None,
            failure=trouble.failure,
            failure_step=steps if trouble.failure else None,
            optimizer_sites=tuple(self._build_facts.optimizer_built_at(o) if self._build_facts else None for o in self.recipe.optimizers),
            learning_rates=tuple(float(o.param_groups[0]["lr"]) for o in self.recipe.optimizers),
            reproduced=examined.reproduced if examined else "not_run",
            reproduction_note=examined.note if examined else "",
            losses=tuple(self._losses),
            grad_norms=tuple(self._grad_norms),
            amp=str(self.runner.amp_dtype).removeprefix("torch.") if self.runner.amp_dtype else None,
            scaler=self.recipe.scaler is not None,
            graph=self._graph.graph,
            never_got_gradient=self._graph.never,
            always_zero=self._graph.always_zero,
            moved_by_hand=self._graph.moved,
            ownership=self._graph.ownership.facts(len(self._losses)) if not (trouble.trip or sick) else None,
            leak=self._graph.leak,
            growing=self._graph.growing,
            grad_off_since_build=not torch.is_grad_enabled(),
            grad_switched_off_at=switched_off,
        )
        bare = self._step_seconds - self._own_seconds
        return Outcome(
            evidence=evidence,
            steps_run=steps,
            losses=self._losses,
            grad_norms=self._grad_norms,
            skipped=self._skipped,
            interrupted=self._interrupted,
            capsule=trouble.capsule,
            overhead=self._step_seconds / bare if bare > 0 else None,
            notes=self._notes + self._graph.notes,
            trace_files=self._trace_files,
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first SIGINT ends the run after the step at hand, the second at once; the old handler is put back."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        before = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
