"""One step run again under the tracer, from its capsule."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc import probing
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.facts.ops import OpFacts
from nanodoc.measure.frames import FrameProbe
from nanodoc.measure.gradients import packed_vitals, really_nonfinite
from nanodoc.replay.sandbox import warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import local_of, without_values
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.examine import Request
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.half import HalfLog
from nanodoc.trace.threads import in_one_thread
from nanodoc.trace.tracer import Tracer

GRADIENT_MARK = "gradient:"

PROBE_MARK = "probe:"


@dataclass(frozen=True, slots=True)
class Replay:
    """One traced run of the step and how it ended."""

    trace: StepTrace
    losses: list[float]
    grad_norm: float
    bad_parameters: list[str]
    error: UserCodeError | None
    bad_since: int | None = None
    """How many losses had been computed when a gradient was first seen not to be finite."""

    @property
    def gradients_first(self) -> bool:
        """Gradients were sick while every loss until then was finite: a loss that is not finite
        later is their effect."""
        return self.bad_since is not None and all(
            math.isfinite(loss) for loss in self.losses[: self.bad_since]
        )


class Replayer:
    """Runs steps of one recipe again."""

    repeats = True
    """As an examiner asks: every question is a run of its own."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper) -> None:
        self._runner = runner
        self._keeper = keeper
        self._model = runner.recipe.model
        self._named = list(self._model.named_parameters())

    @property
    def observing(self) -> bool:
        """The step is the user's own `train_step`."""
        return self._runner.observing

    def rewind(self, capsule: StepState) -> None:
        """Puts the step's start back."""
        self._keeper.restore(capsule)

    def replay(
        self,
        capsule: StepState,
        requests: dict[int, Request] | None = None,
        *,
        half: HalfLog | None = None,
        frames: FrameProbe | None = None,
        traced: bool = True,
    ) -> Replay:
        """Rewinds to `capsule` and runs the step's forward and backward under the tracer. With
        `half`, half-precision ops are compared with float32 and every gradient is marked; `frames`
        measures every module call. Without `traced` the trace is empty: only how the step ends is
        asked for."""
        self._keeper.restore(capsule)
        batches = [self._runner.moved(batch) for batch in capsule.batches]
        tracer = Tracer(self._model, leaves_of(self._model, batches), requests, half=half)
        bad: list[str] = []

        bad_since: list[int] = []

        def on_gradients() -> None:
            self._mark_gradients(tracer, bad, every=half is not None)
            if bad and not bad_since:
                bad_since.append(len(losses))

        losses: list[torch.Tensor] = []
        error: UserCodeError | None = None

        def on_loss(loss: torch.Tensor) -> None:
            tracer.mark(f"loss:{len(losses)}", loss)
            losses.append(loss.detach())

        with run_eagerly(), in_one_thread(self._model), contextlib.ExitStack() as around:
            _listen(around, tracer, half, frames)
            try:
                with tracer if traced else contextlib.nullcontext():
                    run_step(
                        self._runner,
                        batches,
                        on_loss=on_loss,
                        on_gradients=on_gradients,
                        on_scaler_step=on_gradients,
                    )
            except UserCodeError as raised:
                error = raised
            except UsageError:
                if not losses:
                    raise
        trace = tracer.finish()
        if half is not None:
            half.finish()
        vitals = packed_vitals(losses, self._named)
        read = [float(loss) for loss in losses]
        return Replay(
            trace, read, vitals.grad_norm, bad, error, bad_since[0] if bad_since else None
        )

    def replay_and_rewind(self, capsule: StepState) -> Replay:
        """`replay`, after which everything is as it was before it."""
        with self._keeper.rewound(capsule):
            return self.replay(capsule)

    def complete(self, capsule: StepState) -> None:
        """Every replay of this step starts from the same weights, and from the same state
        outside."""
        self._keeper.complete(capsule)

    def _mark_gradients(self, tracer: Tracer, bad: list[str], *, every: bool = False) -> None:
        """Marks the non-finite gradients, once: a later optimizer's step may see other ones. With
        `every`, all of them."""
        if every:
            for name, parameter in self._named:
                if parameter.grad is not None:
                    tracer.mark(GRADIENT_MARK + name, parameter.grad)
        if bad:
            return
        with tracer.paused():
            bad.extend(really_nonfinite(self._named))
        for name, parameter in self._named:
            if name in bad and parameter.grad is not None:
                tracer.mark(f"grad:{name}", parameter.grad)

    def ops_inside(self, capsule: StepState, module: str) -> tuple[OpFacts, ...]:
        """The forward ops of a module and of those below it, examined."""
        first = self.replay(capsule).trace
        inside = {
            i
            for i, (path, _) in enumerate(first.modules)
            if path == module or path.startswith(module + ".")
        }
        wanted = [
            i
            for i, r in enumerate(first.records)
            if r.module in inside and r.phase == "forward" and not r.info.view and not r.info.silent
        ]
        second = self.replay(capsule, {index: Request() for index in wanted}).trace
        return tuple(second.facts(index) for index in wanted if index in second.details)


def leaves_of(model: torch.nn.Module, batches: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    """(name, tensor) of everything a step begins with: parameters, buffers, the batch."""
    return [
        *(
            (f"param:{name}", local_of(parameter.detach()))
            for name, parameter in model.named_parameters()
            if not without_values(parameter)
        ),
        *(
            (f"buffer:{name}", local_of(buffer))
            for name, buffer in model.named_buffers()
            if not without_values(buffer)
        ),
        *(
            leaf
            for i, batch in enumerate(batches)
            for leaf in tensor_leaves(batch, "batch" if len(batches) == 1 else f"batch[{i}]")
        ),
    ]


def _listen(
    around: contextlib.ExitStack, tracer: Tracer, half: HalfLog | None, frames: FrameProbe | None
) -> None:
    """Enters what listens to a replay beside the tracer."""
    around.enter_context(warnings_unsaid())
    around.enter_context(_marking_probes(tracer))
    if half is not None:
        around.enter_context(half.watching(lambda: tracer.count))
    if frames is not None:
        around.enter_context(frames.listening())
        around.enter_context(frames)


@contextlib.contextmanager
def _marking_probes(tracer: Tracer) -> Iterator[None]:
    """Marks what `nanodoc.probe` is given and holds NaN or +inf, so that a slice can start
    there."""
    number = 0

    def mark(tensor: Any, label: str) -> None:
        nonlocal number
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return
        with tracer.paused():
            values = tensor.detach()
            bad = bool((torch.isnan(values) | torch.isposinf(values)).any())
        if bad:
            tracer.mark(f"{PROBE_MARK}{number}", tensor)
            number += 1

    before = probing.listen(mark)
    try:
        yield
    finally:
        probing.listen(before)
