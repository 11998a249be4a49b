"""A sick step that no rank can run again by itself: all ranks do so together, once what is not
finite has come to all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from nanodoc.examination.non_finite import Examined
from nanodoc.facts.evidence import Trip
from nanodoc.loop.outcome import RunMetrics
from nanodoc.measure.gradients import Vitals
from nanodoc.replay.local_collectives import LocalCollectives
from nanodoc.replay.lockstep import all_agree, all_told, run_together, weights_kept
from nanodoc.replay.optimizers import copied, copy_optimizer, copy_tensor
from nanodoc.replay.rerun import begin_past
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState, copy_weights
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.trace.tracer import Tracer

_LONGEST = 2
"""Steps within which what is not finite in one rank's part comes to all: with the next forward pass
that uses this part."""


@dataclass(frozen=True, slots=True)
class SickStep:
    """A step as one rank saw it. Without `start` it can't be run again."""

    step: int
    start: StepState | None
    vitals: Vitals
    bad: tuple[str, ...]
    """Names of the parameters whose gradients, as far as this rank holds them, are not finite."""
    indices: Sequence[int] | None
    bad_at: tuple[tuple[int, ...] | None, ...] = ()
    """As in `Trip`."""

    @property
    def trip(self) -> Trip:
        """Why the run ended with it."""
        return Trip(
            step=self.step,
            phase="backward" if math.isfinite(self.vitals.loss) else "forward",
            loss=self.vitals.loss,
            grad_norm=self.vitals.grad_norm,
            bad_parameters=self.bad,
            bad_at=self.bad_at,
            gradients_finite=not self.bad,
        )


class LockstepRun:
    """One rank's side of it."""

    enabled = False
    """A step can't be run again by this rank alone; by all of them it can."""
    shared: StepState | None = None
    """The start of a step that all ranks ran again, and whose weights are still there."""
    held: SickStep | None = None
    """A step whose gradients were sick in this rank's part, and in no other's that matters: the
    others had stepped by then, so the script goes on until they meet it, too."""
    earlier: SickStep | None = None
    """The step that all ranks ran again in the place of the one that they met it in."""
    _holding: int | None = None

    came_to: Mapping[str, float] = MappingProxyType({})
    """Loss and gradient norm of `earlier` when it was run again: near those of the training's own
    step, whose weights some ranks have moved by then."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        checkpoints: WeightHistory,
        course: RunMetrics,
        alone: LocalCollectives,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._checkpoints = checkpoints
        self._course = course
        self._alone = alone
        self._named = list(runner.recipe.model.named_parameters())

    @property
    def first(self) -> SickStep | None:
        """The step that the run is to end with, where that is one before the last."""
        return self.earlier or self.held

    def overdue(self, step: int) -> bool:
        """A step was held back, and this one begins without that the others have met it."""
        return self.held is not None and step - self.held.step > _LONGEST

    def holds_back(self, start: StepState, vitals: Vitals | None) -> bool:
        """The step, which is sick on this rank, is not so on all of them: the script is to go on.
        Where its loss is not finite, that has come to all already, or will with the next
        collective."""
        if self._holding == start.step:
            return True
        if not self.enabled or vitals is None or not math.isfinite(vitals.loss):
            return False
        if self.held is not None and start.step - self.held.step >= _LONGEST:
            return False
        if all_agree(start.step):
            return False
        self._holding = start.step
        self._kept_on_host(start)
        return True

    def _kept_on_host(self, start: StepState) -> None:
        """Weights and optimizers as the step began with them, which are needed to the end of the
        run: the device's memory is the training's."""
        if start.weights is None:  # no optimizer has stepped yet
            start.weights = copy_weights(self._named, host=True)
            optimizers = self._runner.recipe.optimizers
            start.optimizers = [copy_optimizer(optimizer, host=True) for optimizer in optimizers]
            return
        start.weights = [w if w is None else copy_tensor(w, True) for w in start.weights]
        start.optimizers = [
            {**saved, "state": {p: copied(state, True) for p, state in saved["state"].items()}}
            for saved in start.optimizers
        ]

    def is_held(self, start: StepState) -> bool:
        """It was held back when it tripped."""
        return self._holding == start.step

    def hold(self, sick: SickStep) -> None:
        """It is over; `sick.start` has the weights from before its optimizer stepped."""
        self.held = self.held or sick

    def run(
        self,
        start: StepState,
        examined: Callable[[StepState, Tracer, Sequence[torch.Tensor], Sequence[str]], Examined],
        bad: Sequence[str],
    ) -> Examined | None:
        """What the sick step, or the one in which it began on some rank, shows when all ranks run
        it again; None where they don't, or nothing is sick of what this rank makes."""
        if not (self.enabled and all_agree(start.step)):
            return None
        found: Examined | None = None
        self._alone.end()
        # no examination yet: a rank that stands still, since another broke off, is released
        with suppress(Exception):  # whatever is raised: the others have left the training, too
            first, sick = self._first(start, tuple(bad))
            if first is None:
                return None
            if first.weights is not None:  # an optimizer may have moved them since
                self._keeper.restore(first)
            with weights_kept(self._runner, self._keeper) as kept:
                self.shared = first if kept else None
                together = run_together(
                    self._runner,
                    self._keeper,
                    first,
                    lambda tracer, losses, now: examined(first, tracer, losses, sick or now),
                )
            found = together.found
            healthy = self.earlier is not None and not sick
            if found is not None and healthy and not (found.births or found.leaves):
                found = None  # what it sent was not finite, and not of its making
            if self.earlier is not None:
                read = [float(loss.mean()) for loss in together.losses]
                norm = math.nan if found is not None else self.earlier.vitals.grad_norm
                self.came_to = {"loss": math.fsum(read) / max(len(read), 1), "grad_norm": norm}
        return found

    def _first(
        self, start: StepState, bad: tuple[str, ...]
    ) -> tuple[StepState | None, tuple[str, ...]]:
        """The start of the first step that was sick on any rank, where all ranks can begin it
        again, and what was sick in it here. All ranks come here together."""
        own = start.step if self.held is None else self.held.step
        first = min(map(int, all_told(start.step, "first", str(own))))
        if first == start.step:
            return start, bad
        self.earlier = sick = self._earlier(first)
        near = sick.start is not None and start.step - first <= _LONGEST
        answers = all_told(start.step, "there", "yes" if near else "no")
        return (sick.start if "no" not in answers else None), sick.bad

    def _earlier(self, step: int) -> SickStep:
        """That step, begun again with its batch and with the weights that there are: a rank that
        held it back has those from before it, the others those that it came to."""
        held = self.held
        if held is not None and held.start is not None:
            self._keeper.restore(held.start)
        # written to since or not: among what a script's step reads may be its own weights
        past = next((past for past in self._checkpoints.past if past.step == step), None)
        if held is not None and held.step == step:
            sick = held if past is not None else replace(held, start=None)
        else:
            loss, norm = self._course.losses[step], self._course.grad_norms[step]
            vitals = Vitals(loss=loss, grad_norm=norm, norms=(), names=(), extras=())
            sick = SickStep(step, None, vitals, (), past.indices if past is not None else None)
        if past is None:
            return sick
        begin_past(self._runner, self._named, past, {})
        if sick.start is None:
            sick = replace(sick, start=self._keeper.take(step, past.batches))
        return sick
