"""A run whose steps one rank cannot run again by itself, whoever drives them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.live_trace import LiveStep
from nanodoc.examination.non_finite import Examined
from nanodoc.facts.ops import ParameterFacts, all_received
from nanodoc.facts.untraced import Untraced
from nanodoc.heartbeat.trail import here
from nanodoc.loop.leaving_run import LeavingRun
from nanodoc.loop.lockstep_run import LockstepRun, SickStep
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.step_reading import StepReading
from nanodoc.loop.stop import Stop
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.whole_index import first_nonfinite
from nanodoc.trace.tracer import Tracer

_TRACE_IT = (
    "With --trace-steps {step} (trace_steps in code), the same training with the same seeds traces "
    "this step as it runs and names the op."
)


_FROM_OTHERS = (
    "The non-finite values in this rank's part came from a collective to which this rank "
    "contributed finite values: another rank produced them."
)


class SharedRun(LeavingRun):
    """Where `lockstep` is enabled, all ranks run a sick step again together."""

    traced: str = ""
    """The step that was examined by what one trace of it showed, and how that came about."""

    sought: Untraced | None = None
    """The step that a second run of the training is to trace."""

    @cached_property
    def lockstep(self) -> LockstepRun:
        """This rank's side of it."""
        return LockstepRun(self.runner, self.keeper, self.checkpoints, self.course, self.alone)

    def conclude(self, trouble: Stop, steps: int, sick: tuple[ParameterFacts, ...]) -> Outcome:
        """As `LeavingRun`; a sick step that was held back is what ended the run, whatever came of
        it."""
        held = self.lockstep.held
        if held is not None and trouble.trip is None:
            if (later := trouble.failure) is not None:
                told = f"{later.type}: {later.first_line[:160]}"
                self._notes.append(("the error raised after the failed step", told))
            trouble, steps = self._stop_of(held, self._unseen(held.step)), held.step + 1
        return super().conclude(trouble, steps, sick)

    def overdue(self, step: int) -> Stop | None:
        """The run ends before this step: one before it was sick on this rank alone, and the others
        have not met it since; or a second run has come to another loss than the first."""
        losses = self.course.losses
        if self.sought and self.sought.parted_at(losses, max(len(losses) - 1, 0)) is not None:
            return Stop()
        if not self.lockstep.overdue(step):
            return None
        held = self.lockstep.held
        assert held is not None
        return self._stop_of(held, self._unseen(held.step))

    def _unseen(self, step: int) -> Examined:
        """Of a step that was not run again."""
        return Examined((), (), "not_run", _TRACE_IT.format(step=step))

    def _sick(self, capsule: StepState, reading: StepReading) -> SickStep:
        assert reading.tripped is not None
        bad, gradients = tuple(reading.bad_parameters), dict(self._named)
        found = [g for name in bad if (g := gradients[name].grad) is not None]
        at = tuple(map(first_nonfinite, found)) if len(found) == len(bad) else ()
        return SickStep(capsule.step, capsule, reading.tripped, bad, self._indices, at)

    def _stop_of(self, sick: SickStep, examined: Examined) -> Stop:
        """The run ends with this step, maybe one before the last."""
        self._over()
        self.course.back_to(sick.step)
        self.course.tripped(sick.step, sick.vitals)
        self._last, self._indices = sick.start, sick.indices
        return Stop(trip=sick.trip, examined=examined)

    def _run_together(self, capsule: StepState, bad: Sequence[str]) -> Examined | None:
        """What the sick step, or the one before it in which it began, shows when all ranks run it
        again together; None where they don't."""

        def seen(
            start: StepState, tracer: Tracer, losses: Sequence[torch.Tensor], bad: Sequence[str]
        ) -> Examined:
            return self._seen_in(tracer, losses, start, bad)

        found = self.lockstep.run(capsule, seen, bad)
        if found is not None:
            earlier = self.lockstep.earlier
            step = capsule.step if earlier is None else earlier.step
            late = "" if earlier is None else ", after other ranks had passed it"
            self.traced = f"step {step} re-run by all ranks together{late}"
        return found

    def _traced_live(
        self,
        tracer: Tracer,
        losses: Sequence[torch.Tensor],
        capsule: StepState,
        bad: Sequence[str],
        error: UserCodeError | None = None,
    ) -> Examined:
        """What a step shows that was traced on this rank while it ran."""
        self.traced = f"step {capsule.step} traced as it ran"
        seen = self._seen_in(tracer, losses, capsule, bad, error)
        finite = all(bool(torch.isfinite(loss).all()) for loss in losses)
        if finite and all_received(seen.births, seen.leaves):
            # gradients that were made on a rank that may hold none of them, and knows nothing of it
            return Examined((), (), seen.reproduced, _FROM_OTHERS)
        return seen

    def _seen_in(
        self,
        tracer: Tracer,
        losses: Sequence[torch.Tensor],
        capsule: StepState,
        bad: Sequence[str],
        error: UserCodeError | None = None,
    ) -> Examined:
        """What a trace shows of a sick step, which is about to use its gradients."""
        here().examining()
        live = LiveStep.of_model(self.recipe.model, tracer, losses, bad, error)
        return live.examined(capsule, self._indices)
