"""What a run watches about mixed precision: the loss scale step by step, the order of calls in a
train_step, and, when the run is over, what the skipped steps were about and what half precision
rounds to zero."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from nanodoc.examination.half import HalfFacts, half_facts
from nanodoc.facts.amp import AmpFacts, HalfParameter, ScalerStep, SkippedStep
from nanodoc.instrument.taps import AUTOCAST_ENTERED, listening
from nanodoc.looks.scheduler import Look, Place, Stage
from nanodoc.measure.scaler import ScalerReading, read_scaler
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay import telling
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import Replayer
from nanodoc.tensors.plain import without_values
from nanodoc.trace.half import HalfLog
from nanodoc.watchers.skipped_steps import KeptSkip, SkipWatch, at_scale
from nanodoc.watchers.train_step_calls import CallWatch
from nanodoc.watchers.watch import RunEnd, SickSkip, Watch


class AmpWatch(Watch):
    """One run's watch. The engine tells it of every step; `facts()` are complete when `at_end` has
    run."""

    def __init__(
        self, runner: StepRunner, keeper: StateKeeper, replayer: Replayer, build: BuildFacts
    ) -> None:
        super().__init__()
        self._runner = runner
        self._keeper = keeper
        self._replayer = replayer
        self._build = build
        self._named = list(runner.recipe.model.named_parameters())
        of_script = getattr(runner.recipe.train_step, "of_script", False)
        optimizers = runner.recipe.optimizers
        self.calls = CallWatch(optimizers, self._named, in_one_thread=of_script)
        self.skips = SkipWatch(runner)
        self._autocast: str | None = (
            str(runner.amp_dtype).removeprefix("torch.") if runner.amp_dtype else None
        )
        self._half = HalfFacts()
        self._retried: list[SkippedStep] = []
        self.reading: ScalerReading | None = None
        """The scaler tensors that were read last; their values are the first of the extras."""

    @property
    def scaler(self) -> Any:
        """The recipe's GradScaler, or the one that the train_step uses."""
        return (
            self._runner.recipe.scaler
            if self._runner.recipe.scaler is not None
            else self.calls.order.scaler
        )

    @property
    def concerned(self) -> bool:
        """The run has anything to do with mixed precision."""
        return (
            self._autocast is not None
            or self.scaler is not None
            or any(p.dtype == torch.float16 for _, p in self._named)
        )

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        """Notices the first autocast context that is entered."""

        def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
            def __enter__(context: Any) -> Any:
                if self._autocast is None and context._enabled:
                    self._autocast = str(context.fast_dtype).removeprefix("torch.")
                return enter(context)

            return __enter__

        with contextlib.ExitStack() as around:
            around.enter_context(listening((AUTOCAST_ENTERED, entering)))
            if self._runner.observing:
                around.enter_context(self.calls.installed())
                around.enter_context(telling.installed())
            yield

    # -- told by the engine ------------------------------------------------------------------------

    @property
    def hopeless(self) -> bool:
        return self.skips.hopeless

    def before_step(self, start: StepState) -> float:
        self.reading = None
        return 0.0

    def scalars(self, *, done: bool = False) -> list[torch.Tensor]:
        """The scaler's state. `done` after a train_step, which may have updated the scale
        already."""
        state = self.calls.before_update if done and self._runner.observing else None
        optimizers = self._runner.recipe.optimizers if not self._runner.observing else ()
        reading = read_scaler(self.scaler, optimizers, state)
        self.reading = reading or self.reading
        return list(self.reading.tensors) if self.reading else []

    def note(
        self, capsule: StepState, values: Sequence[float], *, of_step_before: bool = False
    ) -> ScalerStep | None:
        """One step's scaler state as it was read; in a driven loop before the optimizers move.
        `of_step_before`: what the scaler decided on were that step's gradients."""
        reading = self.reading
        if reading is None or len(values) < len(reading.tensors):
            return None
        values = values[: len(reading.tensors)]
        observing = self._runner.observing
        left_out = self.calls.left_out if observing else None
        step = reading.step(capsule.step, values, left_out, self.calls.taken if observing else ())
        if observing:
            self._keeper.scaler = self.scaler
            self._keeper.more_scalers = [
                scaler for scaler in self.calls.order.scalers.values() if scaler is not self.scaler
            ]
        if observing and not (self.calls.taken or self.calls.left_out):
            return step  # a micro-batch of several: nothing was tried at this scale
        if not step.skipped or (observing and self.calls.taken):
            self.skips.moved()
        if of_step_before or (
            observing and self.calls.taken and step.skipped and capsule.weights is None
        ):
            self.skips.steps.append(step)  # this step can't show it: some weights have moved
            self.skips.of_steps_before |= of_step_before and bool(step.skipped)
        else:
            self.skips.note(step, capsule)
        return step

    def at_end(self, end: RunEnd) -> None:
        if not self.concerned or not end.clean:
            return
        last = end.last

        def retry(place: Place) -> None:
            end.sick_skip = self._retry()

        end.looks.add(
            Look(
                name="skipped steps",
                group="skipped steps",
                stage=Stage.END,
                due=True,  # a step that is sick without the scale, too, is what the run ended with
                likely=0.3,
                runs=len(self.skips.kept()),
                work=retry,
            )
        )
        end.looks.add(
            Look(
                name="half precision",
                group="underflow",
                stage=Stage.LAST_STEPS,
                likely=0.3,  # a third of the runs in float16 flush something
                runs=10,  # traced, and each op computed again in float32
                asks=lambda: last is not None and end.sick_skip is None,
                work=lambda place: self._measure(last) if last is not None else None,
            )
        )

    # -- looking -----------------------------------------------------------------------------------

    def _retry(self) -> SickSkip | None:
        if self.skips.too_large:
            self.notes.append(
                (
                    "skipped steps",
                    "not re-run: the weights exceed 1 GiB, so nanodoc kept no copy of them",
                )
            )
        if self.skips.of_steps_before:
            why = "not re-run: the scaler skipped them in the iteration after their backward pass"
            self.notes.append(("skipped steps", why))
        for kept in self.skips.kept():
            with state_preserved(self._runner, self._keeper):
                capsule = at_scale(kept.capsule, self._runner.device)
                replay = self._replayer.replay(capsule)
            if replay.error is not None:
                raised = type(replay.error.cause).__name__
                self.notes.append(
                    ("skipped steps", f"step {capsule.step} raised {raised} when it was re-run")
                )
                continue
            finite = not replay.bad_parameters and all(map(math.isfinite, replay.losses))
            self._retried.append(_retried(kept, finite))
            if not finite:
                loss = sum(replay.losses) / len(replay.losses) if replay.losses else math.nan
                return SickSkip(capsule, tuple(replay.bad_parameters), loss)
        return None

    def _measure(self, last: StepState) -> None:
        """One more traced run of the last step's batch, with every half-precision op compared with
        float32."""
        log = HalfLog()
        with state_preserved(self._runner, self._keeper):
            replay = self._replayer.replay(last, half=log)
        if replay.error is not None:
            raised = type(replay.error.cause).__name__
            self.notes.append(("underflow", f"step {last.step} raised {raised} when it was re-run"))
            return
        self._half = half_facts(
            replay.trace, log, [name for name, _ in self._named], self._runner.device
        )
        for place in self._half.clips:
            self.calls.order.clipped_by_hand(place, last.step)

    # -- what is known at the end ------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        return {"amp_facts": self._facts() if self.concerned else None}

    def _facts(self) -> AmpFacts:
        scaler = self.scaler
        return AmpFacts(
            dtype=self._autocast,
            asked_at=self._build.amp_at if self._runner.amp_dtype is not None else None,
            has_scaler=scaler is not None,
            scaler_enabled=scaler is not None and bool(scaler.is_enabled()),
            steps=tuple(self.skips.steps),
            calls=self.calls.order.calls(),
            misuses=self.calls.order.misuses(),
            retried=tuple(self._retried),
            flushed=self._half.flushed,
            headroom=self._half.headroom,
            regions=self._half.regions,
            half_parameters=tuple(self._half_parameters()),
        )

    def _half_parameters(self) -> Iterator[HalfParameter]:
        held = {
            id(p)
            for o in self._runner.recipe.optimizers
            for group in o.param_groups
            for p in group["params"]
        }
        modules = dict(self._runner.recipe.model.named_modules())
        for name, parameter in self._named:
            if (
                without_values(parameter)
                or parameter.dtype != torch.float16
                or not parameter.requires_grad
                or id(parameter) not in held
            ):
                continue
            path = name.rpartition(".")[0]
            made = (
                self._build.cast_at(name)
                or self._build.layer_made_at(path)
                or self._build.registered_at(name)
            )
            yield HalfParameter(
                name=name,
                dtype="float16",
                module=path,
                module_type=type(modules[path]).__name__ if path in modules else "",
                made_at=made,
            )


def _retried(kept: KeptSkip, finite: bool) -> SkippedStep:
    return SkippedStep(
        step=kept.capsule.step, scale=kept.scale, proven=kept.proven, finite_unscaled=finite
    )
