"""ND601, ND606: updates that blew the run up, before or without anything becoming NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.course import (
    falls_further,
    has_fixed_targets,
    is_weighed,
    lowest_term,
    rise,
    worse_than_guessing,
)
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import CARRIED
from nanodoc.facts.ops import Birth
from nanodoc.facts.plateau import no_better
from nanodoc.facts.trials import HARDLY_MOVED, UNBOUNDED, Growth, Pattern, RerunFacts
from nanodoc.rules.forward.overflow_claims import overflowed
from nanodoc.rules.learning.claims import at_call
from nanodoc.rules.learning.divergence_report import WEIGHTS_GREW, diverged_claim, slower
from nanodoc.rules.learning.loop_claims import loop_misuse

# Without an experiment: far beyond any healthy spike, a loss a hundred times its start and values
# whose square nears float32's end.
_GROWTH = 100.0


_ENORMOUS = 1e12


_TENFOLD = 10.0  # times the loss at the start


_TWICE = 2.0  # times the weights of step 0


_THOUSANDFOLD = 1e3


_LOST = 1e6  # times the loss at the start


_BEYOND = 1e8  # times the loss at the start, or 1


def by_clipping_alone(pattern: Pattern | None) -> bool:
    """Clipped gradients keep the run finite and a tenth of the learning rate doesn't: single
    gradients are at fault."""
    course = pattern.course if pattern is not None else None
    return (
        course is not None
        and any(stretch.passes and stretch.clip is not None for stretch in course.stretches)
        and not slower(course)
    )


def divergence_claims(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    pattern = evidence.pattern
    growth, course = (pattern.growth, pattern.course) if pattern is not None else (None, None)
    if _unbounded(evidence, growth or Growth()):
        yield _without_bound(rule, evidence, growth or Growth())
        return
    if loop_misuse(evidence, CARRIED) is not None:
        return  # why the updates are too large was seen: gradients are never cleared
    if evidence.trip is None and not evidence.births and not evidence.optimizers:
        climbed = _climbed(rule, evidence, growth or Growth(), course)
        if climbed is not None:
            yield climbed
            return
    if (
        no_better(evidence)
        and not _lost(evidence, growth or Growth())
        and _rise(evidence) < _TENFOLD
    ):
        return  # ND609 says what a smaller rate does
    broke = evidence.trip is not None or bool(evidence.births) or bool(evidence.optimizers)
    overflow = _overflow(evidence.births)
    if broke and evidence.births and growth is not None and _hardly_moved(growth):
        return  # an op made that much of next to nothing
    if growth is not None and course is not None and course.repeated:
        lost = _blew_up(pattern, growth, course) if broke else _lost(evidence, growth)
        if not lost and (
            not course.passing()
            or not (growth.seen if broke else _went_off(evidence, growth, course))
        ):
            return
    elif not (_grew_enormously(evidence) and overflow is not None and _not_refuted(evidence)):
        return
    yield diverged_claim(rule, evidence, growth or Growth(), course, overflow, broke=broke)


def _climbed(
    rule: Rule, evidence: Evidence, growth: Growth, course: RerunFacts | None
) -> Claim | None:
    """A finite loss that ended well above its start. It has a reason to fall, and with a smaller
    rate it does not rise; or it ended far above what guessing costs; or the weights grew a
    hundredfold with it, whatever kind of loss it is."""
    found = rise(evidence.losses)
    if found is None or evidence.failure is not None:
        return None
    cured = (
        course is not None
        and course.repeated
        and any(s.passes and s.clip is None for s in course.stretches)
        and has_fixed_targets(evidence)
    )
    guessing = worse_than_guessing(evidence, found.end)
    weights = growth.weights or 0.0
    blown_up = (
        _rise(evidence) > _TENFOLD
        and weights > _GROWTH
        and len(evidence.optimizer_sites) < 2
        # where the same batches cost as much with weights that do not move, it is the data
        and (course is None or course.repeated)
    )
    # no return and no critic's target grows as far in health
    beyond = _rise(evidence) > _BEYOND and len(evidence.optimizer_sites) < 2
    # an average of other weights would have stayed behind them
    by_hand = _rise(evidence) > _TENFOLD and growth.written is not None
    if not (cured or blown_up or beyond or by_hand or guessing is not None):
        return None
    claim = diverged_claim(
        rule, evidence, growth, course if course and course.repeated else None, None, broke=False
    )
    notes = (("ln C, the loss of guessing", guessing),) if guessing is not None else ()
    finding = replace(
        claim.finding,
        severity="critical" if found.factor >= _TENFOLD else "warning",
        title=f"the run diverged: the loss went from {found.start:.3g} to {found.end:.3g} and did "
        "not come back",
        evidence=(*claim.finding.evidence, *notes),
    )
    return replace(claim, root=("rate",), stage=Stage.LEARNING, finding=finding)


def _rise(evidence: Evidence) -> float:
    """The last losses over the first, or over 1 where that one was near zero: a loss that begins at
    1e-5 grows a millionfold in health."""
    return max(map(abs, evidence.losses[-3:])) / max(abs(evidence.losses[0]), 1.0)


def _lost(evidence: Evidence, growth: Growth) -> bool:
    """Growth that is a fact, whatever helps against it."""
    loss, weights = _rise(evidence), growth.weights or 0.0
    return (loss > _LOST and weights > 1e3) or (loss > _GROWTH and weights > 1e4)


def _went_off(evidence: Evidence, growth: Growth, course: RerunFacts) -> bool:
    """A run whose loss stayed finite: returns that grow as a policy learns, and values that leave a
    tiny initialisation, raise a loss tenfold, too. Weights a thousand times as large, or a loss a
    million times, are beyond that; less needs more signs."""
    loss, weights = _rise(evidence), growth.weights or 0.0
    if loss < 10:
        return False
    if weights > 1000 or (loss > _LOST and weights > WEIGHTS_GREW):
        return len(evidence.optimizer_sites) < 2 or loss > _GROWTH
    losses = evidence.losses
    tenth = max(len(losses) // 10, 3)
    growing = sum(losses[-tenth:]) > sum(losses[-2 * tenth : -tenth])
    cured = any(stretch.passes and stretch.rate >= 0.1 for stretch in course.stretches)
    return (
        len(evidence.optimizer_sites) < 2
        and loss > _GROWTH
        and weights > 4 * WEIGHTS_GREW
        and (growth.norm or 0) > 10
        and growing
        and cured
    )


def _blew_up(pattern: Pattern | None, growth: Growth, course: RerunFacts) -> bool:
    """Weights a million times as large when the step broke, by batches that are alike; or, where
    the first weights bear the step, a thousand times, or a loss a million times its start with
    weights that grew: no op did that, whether or not some other rate keeps so few steps from it."""
    weights, loss = growth.weights or 0.0, growth.loss or 0.0
    borne = pattern is not None and pattern.passes("first-weights") is True
    grew = weights > _LOST and loss > _GROWTH
    by_then = weights > _THOUSANDFOLD or (loss > _LOST and weights > WEIGHTS_GREW)
    return course.alike and (grew or (borne and by_then))


def _hardly_moved(growth: Growth) -> bool:
    return growth.moved is not None and growth.moved < HARDLY_MOVED


def _not_refuted(evidence: Evidence) -> bool:
    """Where the past can't be run again, the experiments on the step must not speak against it, and
    something must have moved."""
    pattern = evidence.pattern
    if pattern is not None and (
        pattern.passes("other-batch") or pattern.passes("first-weights") is False
    ):
        return False
    return not evidence.learning_rates or any(rate > 0 for rate in evidence.learning_rates)


def _grew_enormously(evidence: Evidence) -> bool:
    losses = [abs(loss) for loss in evidence.losses if math.isfinite(loss)]
    return bool(losses) and max(losses) >= _GROWTH * max(losses[0], 1e-6)


def _overflow(births: Iterable[Birth]) -> tuple[Birth, float] | None:
    """The op that finally overflowed, and the largest value it was given."""
    for birth in births:
        largest = max(
            (fact.absmax for fact in birth.op.inputs if fact.absmax is not None), default=0.0
        )
        if overflowed(birth) and largest >= _ENORMOUS:
            return birth, largest
    return None


def _unbounded(evidence: Evidence, growth: Growth) -> bool:
    """The loss fell further and further below zero, and the weights grew all the while: it is
    minimised, and has no minimum."""
    losses, norms = evidence.losses, evidence.grad_norms
    if len(losses) < 2 or evidence.trip is not None:
        return False
    fell = -losses[-1] / max(abs(losses[0]), 1.0)
    grew = (growth.weights or 0) >= WEIGHTS_GREW and norms[-1] >= 10 * norms[0]
    return fell > _LOST or (fell > UNBOUNDED and grew) or _falls_further(evidence)


def _falls_further(evidence: Evidence) -> bool:
    """The weights grow with a loss that falls and falls, and no second optimizer or reward is its
    reason."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    grew = evidence.stats.weights_grew if evidence.stats is not None else None
    if calls is None or (grew or 0.0) < _TWICE or len(evidence.optimizer_sites) > 1:
        return False
    return falls_further(evidence.losses) and not is_weighed(calls)


def _without_bound(rule: Rule, evidence: Evidence, growth: Growth) -> Claim:
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    loss = lowest_term(calls) if calls is not None else None
    site = next((made for made in evidence.optimizer_sites if made is not None), None)
    times = growth.weights or (evidence.stats.weights_grew if evidence.stats is not None else None)
    grew = f"{times:.3g}-fold" if times else None
    notes = (
        ("loss at the start", evidence.losses[0]),
        ("last loss", evidence.losses[-1]),
        ("weights grew", grew),
    )
    return Claim(
        root=("optimizer", 0),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(
                0.7,
                0.6 if (growth.weights or 0) > 10 * WEIGHTS_GREW else 0.3,
                0.4 if len(evidence.losses) > 50 else 0.0,
            ),
            title=f"the loss falls without bound: from {evidence.losses[0]:.3g} to "
            f"{evidence.losses[-1]:.3g}",
            explanation="The optimizer works as it should, and the loss keeps falling"
            + (f" while the weights grew {grew}" if grew else "")
            + ". Some term of the loss has no lower bound.",
            culprit=at_call(loss, evidence)
            if loss is not None and loss.site is not None
            else Culprit(kind="optimizer", location=site),
            phase="optimizer",
            step=len(evidence.losses) - 1,
            evidence=tuple((label, value) for label, value in notes if value is not None),
            fixes=(
                Fix(
                    title="check the signs of the loss's terms: a penalty that is subtracted "
                    "rewards large weights; a critic needs a bound",
                    confidence="maybe",
                ),
            ),
        ),
    )
