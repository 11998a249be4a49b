"""What may be asked of a run whose steps were well: whether it would have come further from other
first weights, with other learning rates, with a layer trained that is frozen, with a nonlinear
function between two linear layers, or with a call made in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nanodoc.experiments.between_layers import between_layers, without_use
from nanodoc.experiments.far_inputs import better_than_slower, far_inputs, tiny_inputs
from nanodoc.experiments.first_weights import extreme_weights, far_from_default, sure_weights
from nanodoc.experiments.growth import growth_until
from nanodoc.experiments.held_back import HeldBack
from nanodoc.experiments.learns_without import learns_without
from nanodoc.experiments.loss_scale import loss_scale
from nanodoc.experiments.past import Past
from nanodoc.experiments.smaller_rates import may_begin_better, smaller_rates
from nanodoc.experiments.step import Step
from nanodoc.experiments.thawed import fresh_and_frozen, thawed
from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.rates import (
    compared,
    has_one_goal,
    is_creeping,
    lower_is_better,
    one_unlearnt,
    slow_enough,
    worth_larger_updates,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import BetweenFacts, FarInputs, Pattern, RerunFacts
from nanodoc.looks.scheduler import Stage

_LOWER = 0.7  # times the loss that a run ended at

Add = Callable[..., None]


class CourseLooks:
    """The looks at the course of one run. `pattern` is what is known so far, and `tell` takes what
    is found, by the names of its fields."""

    def __init__(
        self,
        trials: StepTrials,
        step: Step,
        say: Say,
        pattern: Callable[[], Pattern],
        tell: Callable[..., None],
    ) -> None:
        self._trials = trials
        self._step = step
        self._recipe: Any = trials.runner.recipe
        self._say = say
        self._pattern = pattern
        self._tell = tell

    def register(self, add: Add, evidence: Evidence, past: Past) -> None:
        """Adds them; each asks when its turn comes."""
        length, not_cured = len(compared(evidence)), self._not_cured
        add(
            "narrower first weights and smaller learning rates",
            lambda place: self._better_start(evidence, past),
            asks=lambda: not_cured() and may_begin_better(evidence, self._recipe.optimizers),
            stage=Stage.COURSE,
            likely=0.1,  # most runs that stand still do so for other reasons
            runs=4 * length,
            first=length,
        )
        add(
            "first weights as wide as torch's own",
            lambda place: self._tell(
                wide=extreme_weights(past, self._recipe.model, evidence, self._step.initialised_at)
            ),
            asks=lambda: (
                not_cured()
                and self._pattern().wide is None
                and has_one_goal(evidence)
                and bool(far_from_default(self._recipe.model, past.first()))
            ),
            stage=Stage.COURSE,
            likely=0.5,  # few begin so wide on purpose
            runs=length,
            first=length,
        )
        self._register_changes(add, evidence, past)

    def _not_cured(self) -> bool:
        course = self._pattern().course
        return course is None or not course.passing()

    def _register_changes(self, add: Add, evidence: Evidence, past: Past) -> None:
        """Calls made in another way, changes of layers, and larger rates."""
        length, losses = len(compared(evidence)), evidence.losses
        not_cured = self._not_cured
        add(
            "calls made in another way",
            lambda place: self._tell(
                without=learns_without(
                    self._trials, self._step, losses, self._say, _moved_at(evidence)
                )
            ),
            asks=lambda: not_cured() and (one_unlearnt(evidence) or bool(_moved_at(evidence))),
            stage=Stage.COURSE,
            likely=0.3,  # of those that learn nothing
            runs=2 * length,
            first=length,
        )
        add(
            "a nonlinear function between two linear layers",
            lambda place: self._tell(between=self._between(evidence)),
            asks=lambda: (
                not_cured() and lower_is_better(evidence) and bool(without_use(_calls(evidence)))
            ),
            stage=Stage.COURSE,
            likely=0.3,  # a head of two linear layers may do well
            runs=length,
            first=length,
        )
        add(
            "frozen layers trained",
            lambda place: self._tell(thawed=thawed(self._trials, self._step, losses, self._say)),
            asks=lambda: (
                (lower_is_better(evidence) or has_one_goal(evidence, frozen=True))
                and bool(fresh_and_frozen(self._trials, self._step))
            ),
            stage=Stage.COURSE,
            likely=0.5,  # an optimizer was given them, so that they were to train
            runs=length,
        )
        add(
            "larger learning rates",
            lambda place: self._larger_updates(evidence, past),
            asks=lambda: not_cured() and worth_larger_updates(evidence),
            stage=Stage.LARGER_STEPS,
            likely=0.1,
            runs=7 * length,
            first=length,
        )

    def _between(self, evidence: Evidence) -> BetweenFacts | None:
        calls, losses = _calls(evidence), evidence.losses
        return between_layers(self._trials, self._step, calls, losses, self._say)

    def _better_start(self, evidence: Evidence, past: Past) -> None:
        """Whether narrower first weights, or smaller steps, would have done far better."""
        model, optimizers = self._recipe.model, list(self._recipe.optimizers)
        if wide := sure_weights(past, model, evidence, self._step.initialised_at):
            self._tell(wide=wide)
            return
        slower = smaller_rates(evidence, optimizers, past)
        self._tell(slower=slower)
        checkpoints, lower = self._step.checkpoints, slow_enough(evidence, slower)
        if lower is None:
            return
        if checkpoints is not None and self._pattern().growth is None:
            named, capsule = list(model.named_parameters()), self._step.capsule
            self._tell(growth=growth_until(evidence, checkpoints, named, self._trials, capsule))
        until = len(compared(evidence)) - 1
        scaled = loss_scale(past, self._trials, optimizers, until)
        ended = scaled.last_loss if scaled is not None else None
        if ended is not None and ended < _LOWER * late_loss(compared(evidence)):
            self._tell(scaled=scaled)
        elif slower is not None:
            self.standardised(evidence, past, until, slower)

    def standardised(self, evidence: Evidence, past: Past, until: int, course: RerunFacts) -> None:
        """Whether the run learns with standardised inputs, and no smaller rate does as well."""
        far: FarInputs | None = far_inputs(past, self._recipe.model, evidence, until)
        if far is not None and better_than_slower(far, course):
            self._tell(far=replace(far, diverged=course is self._pattern().course))

    def _larger_updates(self, evidence: Evidence, past: Past) -> None:
        """What held back a run that learnt nothing."""
        checkpoints, lower = self._step.checkpoints, slow_enough(evidence, self._pattern().slower)
        if checkpoints is None or lower is not None or not worth_larger_updates(evidence):
            return
        if (tiny := tiny_inputs(past, self._recipe.model, evidence)) is not None:
            self._tell(far=tiny)
            return
        slow = is_creeping(evidence)
        held = HeldBack(self._trials, checkpoints, self._say, creeping=slow)
        self._tell(held_back=held.facts(evidence.losses))


def _calls(evidence: Evidence) -> StepCalls:
    """Those of the last step."""
    return evidence.inspection.calls if evidence.inspection is not None else StepCalls()


def _moved_at(evidence: Evidence) -> SourceSpan | None:
    """The call that moves the samples of one part, of a run with one optimizer and losses above
    zero; whether that is meant is open."""
    apart = evidence.inspection.rows_apart if evidence.inspection is not None else None
    if apart is None or apart.sure or len(evidence.optimizer_sites) != 1:
        return None
    return apart.taken_at if all(loss > 0 for loss in evidence.losses) else None
