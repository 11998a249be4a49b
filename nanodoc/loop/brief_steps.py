"""Steps that are watched by their losses alone.

What a step's full watching costs, some tenths of a millisecond, is much for a step of a few
milliseconds. So of a training of small steps that has gone well for a while, one step in some is
watched in full, and the others are only written down: batch, random states, rates. Where one of
them turns out to be sick, all steps since the latest weights that were kept are run again, now
watched in full; each has to come to the loss that it had, bit by bit, up to the first that is sick.
That one is then examined as any other. On an accelerator, whose kernels may add in another order
each time, losses have to be the same but for rounding.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.non_finite import Examined
from nanodoc.facts.evidence import Trip
from nanodoc.loop.outcome import RunMetrics
from nanodoc.loop.step_reading import StepDriver, StepReading
from nanodoc.loop.stop import Stop
from nanodoc.measure.gradients import nonfinite_tensors
from nanodoc.replay.closure_state import ReachedState
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.replay.observer import Observer
from nanodoc.replay.optimizers import copy_optimizer, scaled_rates
from nanodoc.replay.rerun import begin_past
from nanodoc.replay.step import StepResult, StepRunner, run_step
from nanodoc.replay.step_state import BriefStep, StateKeeper, StepState, copy_weights
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.tensors.modules import KnownParts
from nanodoc.watchers.learning import LearningWatch

FULL_AT_FIRST = 48
"""Steps that are watched in full whatever they take: what is wrong from the start shows there."""
_SMALL_STEP = 0.5  # seconds: of longer ones, watching in full is next to nothing
_SHOWN_BY = 4
"""Steps of a script, or on an accelerator, that are run again before any is brief."""
_UNSEEN = (
    "nanodoc recorded only the losses of the steps before it, and re-running them gives different "
    "results. With --trace-steps {step}, every step is watched in full and this one is traced."
)
_MOST_OPEN = 32
_LOSS, _WEIGHTS = 1e-2, 1e-3
"""How far apart, relative, what is run again on an accelerator may be. Rounding grows from step to
step; what another order of batches or another dropout mask makes of a loss is more."""
_GOLDEN = (5**0.5 - 1) / 2
_SHARE = 1 / 16
_HALVED_AT, _HALVED_AGAIN_AT = 512, 2048
"""Steps. What changes in so long a training does so more slowly."""


def is_full(step: int) -> bool:
    """One in sixteen, then one in 32, then one in 64. Multiples of the golden ratio lie as evenly
    as can be, and never fall in step with what a loop does every few iterations."""
    if step < _HALVED_AT:
        return step < FULL_AT_FIRST or step * _GOLDEN % 1 < _SHARE
    return step * _GOLDEN % 1 < (_SHARE / 2 if step < _HALVED_AGAIN_AT else _SHARE / 4)


@dataclass(slots=True)
class Again:
    """A step that was run again, and what it was seen to do."""

    start: StepState
    reading: StepReading
    indices: Sequence[int] | None


def unseen(step: int, loss: float) -> Stop:
    """A step that was watched briefly is sick, and does not come to the same when it is run
    again."""
    trip = Trip(step=step, phase="forward", loss=loss, grad_norm=None, gradients_finite=True)
    return Stop(trip=trip, examined=Examined((), (), "not_run", _UNSEEN.format(step=step)))


class BriefSteps:
    """Decides which steps are watched in full, keeps what the others need to be run again, and does
    so."""

    def __init__(
        self,
        runner: StepRunner,
        keeper: StateKeeper,
        checkpoints: WeightHistory,
        course: RunMetrics,
        learning: LearningWatch,
    ) -> None:
        self._runner = runner
        self._keeper = keeper
        self._checkpoints = checkpoints
        self._course = course
        self._learning = learning
        self._named = list(runner.recipe.model.named_parameters())
        self._parts = KnownParts(runner.recipe.model)
        # a train_step of a recipe is watched in full, and needs no copies for a trial
        step = runner.recipe.train_step
        self.enabled = step is None or bool(getattr(step, "of_script", False))
        # that the steps of a script, or of a device, come to the same has to be shown first
        self.shown: bool | None = None if runner.observing or runner.device.type != "cpu" else True
        self.rounds = runner.device.type != "cpu"
        self._ready = False
        self._open: list[BriefStep] = []
        self.until = 0
        """The steps before this one are wanted, too, if nothing is told to `self` meanwhile."""
        self.came_to = -1
        """The last step that was run again and came to what it had come to."""

    def wants(self, step: int) -> bool:
        """The step that begins is watched by its losses alone."""
        if step < self.until and self._checkpoints.enabled:
            return True
        if not (self._ready and self.shown) or is_full(step):
            return False
        checkpoints = self._checkpoints
        if not checkpoints.reaches_back or checkpoints.growing:
            return False
        opened = len(self._open)
        room = checkpoints.make_room(max(_MOST_OPEN, opened + 1)) - opened
        if room <= 0:
            return False
        following = range(step, step + room)
        self.until = next(filter(is_full, following), following.stop)
        return True

    @property
    def to_be_shown(self) -> bool:
        """Steps could be brief from now on if those since the last copy of the weights, run again,
        come to what they came to."""
        return (
            self._ready
            and self.shown is None
            and _SHOWN_BY <= self._checkpoints.since_anchor < 2 * _SHOWN_BY
            and self._checkpoints.reaches_back
        )

    def full_step(self, step: int, *, plain: bool) -> None:
        """A step that was watched in full went well. `plain`: no optimizer evaluated a
        closure, nothing was left out, and no probe was heard."""
        self.until = 0
        if not self.enabled or step < FULL_AT_FIRST - 1 - _SHOWN_BY:
            return
        steps = len(self._course.losses)
        seconds = (self._course.step_seconds - self._course.own_seconds) / max(steps, 1)
        if step == FULL_AT_FIRST - 1 and self._is_hopeless():
            self.give_up()
        self._ready = (
            self.enabled
            and plain
            and seconds < _SMALL_STEP
            and self._is_simple()
            and not several_ranks()  # they would have to run steps again together
        )
        overdue = self._checkpoints.since_anchor >= 2 * _SHOWN_BY
        if self._ready and self.shown is None and overdue and self._checkpoints.holds_enough:
            self._checkpoints.keep_next()

    def _is_hopeless(self) -> bool:
        """Something is not finite from the start, or a loss function reads what can't be put back.
        Of a script it is tried whether its steps come to the same."""
        lost = not self._runner.observing and ReachedState(self._runner.recipe).lost
        return bool(lost or nonfinite_tensors(self._named))

    def _is_simple(self) -> bool:
        """Optimizers move the weights, at rates that are numbers; nothing is scaled; the model
        has the parameters that it had."""
        keeper, recipe = self._keeper, self._runner.recipe
        groups = [group for optimizer in recipe.optimizers for group in optimizer.param_groups]
        return (
            bool(groups)
            and all(isinstance(group.get("lr"), float) for group in groups)
            and keeper.scaler is None
            and not keeper.more_scalers
            and self._parts.parameters_stay
        )

    def give_up(self) -> None:
        """From now on every step is watched in full."""
        self.enabled = self._ready = False
        self.until = 0

    def begin(self, step: BriefStep) -> None:
        """It begins. What takes time is done for some of them at once (`write_down`)."""
        if len(self._open) >= _MOST_OPEN:
            self.write_down()
        self._open.append(step)
        self._learning.warnings.step = step.step

    def abandon(self, step: BriefStep) -> None:
        """The one that began last was none."""
        if self._open and self._open[-1] is step:
            self._open.pop()
        else:
            self._checkpoints.abandon(step.step)

    def write_down(self) -> None:
        """Everything that is to be known of the steps that began so far."""
        if not self._open:
            return
        began = time.perf_counter()
        self.until = 0
        steps, self._open = self._open, []
        self._checkpoints.brief_steps(steps)
        self._course.written_down(steps)
        self._learning.brief_steps(steps)
        self._course.own_seconds += time.perf_counter() - began

    # -- run again ---------------------------------------------------------------------------------

    def are_sick(self) -> bool:
        """The weights are not finite, and some of the last steps were watched by their losses
        alone."""
        return self._checkpoints.briefly and bool(nonfinite_tensors(self._named))

    def first_sick(self, until: int, driver: StepDriver) -> Again | None:
        """The first sick step among those since the weights that were kept last, up to `until`.
        None where all are well, or do not come to what they came to. Everything is afterwards as
        when that step began; of None, as where the steps that were run again ended."""
        sick: Again | None = None
        confirmed = False
        for again in self._again(until, driver):
            step, is_sick = again.start.step, again.reading.tripped is not None
            if sick is not None:
                # what it left behind makes the next step what that was
                confirmed = is_sick or step < len(self._course.losses)
                break
            if is_sick:
                sick, confirmed = again, step == until
                self._complete(again.start)
                if confirmed:
                    break
        if sick is None or not confirmed:
            return None
        self._keeper.restore(sick.start)
        return sick

    def before(self, start: StepState, driver: StepDriver) -> Again | None:
        """The step before `start` that made the weights sick and told nobody; None where that does
        not show, and everything is as before."""
        self._complete(start)
        again = self.first_sick(start.step - 1, driver)
        if again is None:
            self._keeper.restore(start)
        return again

    def before_failure(
        self, start: StepState | BriefStep, driver: StepDriver
    ) -> Again | StepState | None:
        """A step before one that raised, if that was sick and told nobody; else its own start,
        where `start` is a brief one."""
        if isinstance(start, StepState):
            return self.before(start, driver) if self.are_sick() else None
        now, step = self.start_now(start), self._runner.recipe.train_step
        own = dict(vars(step)) if getattr(step, "of_script", False) else None
        again = self.first_sick(start.step - 1, driver)
        if again is not None:
            return again
        if self.came_to != start.step - 1:
            self._keeper.restore(now)
            return now
        begin_past(self._runner, self._named, self._checkpoints.past[-1], {})
        if own is not None:
            vars(self._runner.recipe.train_step).update(own)
        return self._keeper.take(start.step, start.batches)

    def sick(self, start: BriefStep, driver: StepDriver) -> Again | None:
        """What a brief step that is not well comes to, or one before it that told nobody; None
        where it comes to nothing of the kind when it is run again."""
        finite = not nonfinite_tensors(self._named)
        now = self.start_now(start) if finite else None
        again = self.first_sick(start.step, driver)
        if again is not None or now is None:
            return again
        # from the weights that there are: the steps before it could not be run again
        self._keeper.restore(now)
        reading = driver.run(now, self._compute)
        self._keeper.restore(now)
        return Again(now, reading, start.indices) if reading.tripped else None

    def come_to_the_same(self, driver: StepDriver) -> bool:
        """The steps since the last copy of the weights, run again, come to the losses that they
        had and to the weights that there are; on an accelerator but for rounding. Leaves everything
        where they end."""
        last = self._checkpoints.past[-1].step
        weights = [parameter.detach().clone() for _, parameter in self._named]
        for _ in self._again(last, driver):
            pass
        return self.came_to == last and self._alike(weights)

    def _alike(self, known: list[torch.Tensor]) -> bool:
        """The weights are those that are known; on an accelerator but for rounding."""
        pairs = [(p.detach(), k) for (_, p), k in zip(self._named, known, strict=True)]
        if not self.rounds:
            return all(torch.equal(now, then) for now, then in pairs)
        # together: what should be zero may be nothing but rounding
        apart = sum(float((now - then).abs().float().square().sum()) for now, then in pairs)
        return apart <= _WEIGHTS**2 * sum(float(k.abs().float().square().sum()) for k in known)

    def _again(self, until: int, driver: StepDriver) -> Iterator[Again]:
        """One after the other, before its optimizer steps where nanodoc lets it step; ends where
        one does not come to what it came to."""
        checkpoints, losses = self._checkpoints, self._course.losses
        anchor, self.came_to = checkpoints.anchor, -1
        steps = checkpoints.steps_between(anchor.step, until) if anchor is not None else None
        if anchor is None or not steps:
            return
        self._keeper.restore(anchor)
        for past in steps:
            begin_past(self._runner, self._named, past, {})
            start = self._keeper.take(past.step, past.batches)
            try:
                used = scaled_rates(1.0, None, past.used) if past.used else nullcontext()
                with self._in_a_row(), used:
                    reading = driver.run(start, self._compute)
            except UserCodeError:
                return
            loss = (reading.tripped or reading.vitals).loss
            if past.step < len(losses) and not self._as_it_was(loss, losses[past.step]):
                return
            yield Again(start, reading, past.indices)
            driver.finish()
            self.came_to = past.step

    @contextlib.contextmanager
    def _in_a_row(self) -> Iterator[None]:
        """Inside, a step is run again that another one follows: a script's iteration may have to be
        run beyond its last optimizer step for that."""
        step: Any = self._runner.recipe.train_step
        if not getattr(step, "of_script", False):
            yield
            return
        step.followed = True
        try:
            yield
        finally:
            step.followed = False

    def _as_it_was(self, loss: float, known: float) -> bool:
        """A step that is run again comes to the loss that is known."""
        near = self.rounds and abs(loss - known) <= _LOSS * max(abs(loss), abs(known))
        return loss == known or near

    def start_now(self, start: BriefStep) -> StepState:
        """The start of a brief step that has not moved the weights, as far as it can be told by
        now."""
        now = self._keeper.take(start.step, start.batches, apart=True)
        now = replace(now, rng=start.rng, numbers=start.numbers, drawn=start.drawn)
        self._complete(now)
        return now

    def _complete(self, start: StepState) -> None:
        """Adds the weights, which are those that the step began with."""
        if start.weights is None:
            start.weights = copy_weights(self._named)
            start.optimizers = [copy_optimizer(o) for o in self._runner.recipe.optimizers]

    def _compute(self, start: StepState, observer: Observer | None) -> StepResult:
        return run_step(self._runner, start.batches, observer=observer)
