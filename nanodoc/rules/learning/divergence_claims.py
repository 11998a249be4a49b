"""ND601, ND606: updates that blew the run up, before or without anything becoming NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import Clip, LowerRate
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.course import has_fixed_targets, rise, update_by_hand, worse_than_guessing
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ops import Birth
from nanodoc.facts.plateau import no_better
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import HARDLY_MOVED, UNBOUNDED, Growth, Pattern, RerunFacts
from nanodoc.rules.base import effects, link, replay_row
from nanodoc.rules.forward.overflow_claims import overflowed
from nanodoc.rules.rewrite import number_in_call

# Without an experiment: far beyond any healthy spike, a loss a hundred times its start and values
# whose square nears float32's end.
_GROWTH = 100.0


_ENORMOUS = 1e12


_RAISED = 1.5  # times the learning rate at the start: the schedule is part of the story


_TENFOLD = 10.0  # times the loss at the start


_LOST = 1e6  # times the loss at the start


# a finite run: how far the weights must have grown, for the loss alone may rise for many reasons
_WEIGHTS = 5.0


def by_clipping_alone(pattern: Pattern | None) -> bool:
    """Clipped gradients keep the run finite and a tenth of the learning rate doesn't: single
    gradients are at fault."""
    course = pattern.course if pattern is not None else None
    return (
        course is not None
        and any(stretch.passes and stretch.clip is not None for stretch in course.stretches)
        and not _slower(course)
    )


def divergence_claims(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    pattern = evidence.pattern
    if pattern is not None and pattern.growth is not None and _unbounded(evidence, pattern.growth):
        yield _without_bound(rule, evidence, pattern.growth)
        return
    growth, course = (pattern.growth, pattern.course) if pattern is not None else (None, None)
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
        lost = not broke and _lost(evidence, growth)
        if not lost and (
            not course.passing()
            or not (growth.seen if broke else _went_off(evidence, growth, course))
        ):
            return
    elif not (_grew_enormously(evidence) and overflow is not None and _not_refuted(evidence)):
        return
    yield _claim(rule, evidence, growth or Growth(), course, overflow, broke=broke)


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
    blown_up = found.factor > _TENFOLD and weights > _GROWTH and len(evidence.optimizer_sites) < 2
    if not (cured or blown_up or guessing is not None):
        return None
    claim = _claim(
        rule, evidence, growth, course if course and course.repeated else None, None, broke=False
    )
    notes = (("ln C, what guessing costs", guessing),) if guessing is not None else ()
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
    if weights > 1000 or (loss > _LOST and weights > _WEIGHTS):
        return len(evidence.optimizer_sites) < 2 or loss > _GROWTH
    losses = evidence.losses
    tenth = max(len(losses) // 10, 3)
    growing = sum(losses[-tenth:]) > sum(losses[-2 * tenth : -tenth])
    cured = any(stretch.passes and stretch.rate >= 0.1 for stretch in course.stretches)
    return (
        len(evidence.optimizer_sites) < 2
        and loss > _GROWTH
        and weights > 4 * _WEIGHTS
        and (growth.norm or 0) > 10
        and growing
        and cured
    )


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
    if (
        len(losses) < 2
        or evidence.trip is not None
        or (growth.weights or 0) < _WEIGHTS
        or norms[-1] < 10 * norms[0]
    ):
        return False
    return losses[-1] < -UNBOUNDED * max(abs(losses[0]), 1.0)


def _without_bound(rule: Rule, evidence: Evidence, growth: Growth) -> Claim:
    site = next((made for made in evidence.optimizer_sites if made is not None), None)
    return Claim(
        root=("optimizer", 0),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(
                0.7,
                0.6 if (growth.weights or 0) > 10 * _WEIGHTS else 0.3,
                0.4 if len(evidence.losses) > 50 else 0.0,
            ),
            title=f"the loss falls without bound: from {evidence.losses[0]:.3g} to "
            f"{evidence.losses[-1]:.3g}",
            explanation="The optimizer does what it is asked: the loss keeps falling while the "
            "weights "
            f"grew {growth.weights:.3g}-fold and the gradient "
            "norm grows with them. Some term of the loss has no lower bound.",
            culprit=Culprit(kind="optimizer", location=site),
            phase="optimizer",
            step=len(evidence.losses) - 1,
            evidence=(
                ("loss at the start", evidence.losses[0]),
                ("last loss", evidence.losses[-1]),
                ("weights grew", f"{growth.weights:.3g}-fold"),
            ),
            fixes=(
                Fix(
                    title="look at the signs of the loss's terms: a penalty that is subtracted "
                    "rewards large weights; a critic needs a bound",
                    confidence="maybe",
                ),
            ),
        ),
    )


def _claim(
    rule: Rule,
    evidence: Evidence,
    growth: Growth,
    course: RerunFacts | None,
    overflow: tuple[Birth, float] | None,
    *,
    broke: bool,
) -> Claim:
    losses = [loss for loss in evidence.losses if math.isfinite(loss)]
    norms = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    rate = _rate(evidence, growth)
    site, raised = _site(evidence, growth)
    birth = overflow[0] if overflow else next(iter(evidence.births), None)
    step = evidence.trip.step if evidence.trip else evidence.failure_step
    return Claim(
        root=("optimizer", 0),  # however many ops overflowed, the updates are the one root
        specificity=Specificity.EXACT,
        position=birth.site.index if birth else 0,
        finding=rule.finding(
            confidence=confidence(
                0.5 if evidence.reproduced == "bitwise" or not broke else 0.2,
                0.85 if course and course.passing() else 0.6,
                0.5 if growth.loss and growth.loss > 10 else 0.2,
                0.4 if len(losses) > 3 else 0.0,
            ),
            title=_title(rule, growth, losses, broke=broke),
            explanation=_explanation(growth, norms, birth, rate, raised=raised),
            culprit=Culprit(
                kind="optimizer",
                op=birth.site.op if birth else None,
                module=birth.site.module if birth else None,
                module_type=birth.site.module_type if birth else None,
                location=site or (birth.site.location if birth else None),
            ),
            phase="optimizer",
            step=step if step is not None else len(evidence.losses) - 1,
            evidence=(
                *_course(growth, losses, norms, rate),
                *((("overflowed at", _place(birth)),) if birth else ()),
                *((("largest value there", overflow[1]),) if overflow else ()),
            ),
            chain=tuple(link(op) for op in birth.chain) if birth else (),
            effects=effects(evidence),
            experiments=replay_row(evidence),
            fixes=tuple(_fixes(growth, course, rate, site, raised=raised)),
        ),
    )


def _title(rule: Rule, growth: Growth, losses: list[float], *, broke: bool) -> str:
    """What exploded, from where to where, and how it ended."""
    sizes = (
        f"the loss grew from {losses[0]:.3g} to {losses[-1]:.3g}"
        if len(losses) > 1 and (growth.loss or 3) > 2
        else _what_grew(growth)
    )
    ended = "before the step broke" if broke else "and did not come back"
    return (
        f"gradients exploded: {sizes} {ended}"
        if rule.code == "ND601"
        else f"the run diverged: {sizes} {ended}"
    )


def _course(
    growth: Growth, losses: list[float], norms: list[float], rate: float | None
) -> list[tuple[str, object]]:
    """The numbers of the run's course that are known."""
    fastest = growth.fastest if (growth.fastest_ratio or 0) > 2 else None
    found: list[tuple[str, object]] = [
        ("loss at the start", losses[0] if losses else None),
        ("last finite loss", losses[-1] if losses else None),
        ("growing since step", growth.began),
        ("learning rate", rate),
        ("largest gradient norm", max(norms, default=None)),
        ("weights grew", f"{growth.weights:.3g}-fold" if growth.weights else None),
        ("most of all", f"{fastest} {growth.fastest_ratio:.3g}-fold" if fastest else None),
    ]
    return [(label, value) for label, value in found if value is not None]


def _rate(evidence: Evidence, growth: Growth) -> float | None:
    """The highest learning rate of the run; the first where the highest is unknown."""
    if growth.rate_highest is not None:
        return growth.rate_highest
    return next(iter(evidence.learning_rates), None)


def _site(evidence: Evidence, growth: Growth) -> tuple[SourceSpan | None, bool]:
    """The line that set the learning rate: the optimizer's, or the scheduler's where it had raised
    the rate. In a step without an optimizer, the line that moves the weights."""
    by_hand = update_by_hand(evidence)
    if by_hand is not None:
        return by_hand.site, False
    raised = (
        growth.rate_given is not None
        and growth.rate_highest is not None
        and growth.rate_highest > _RAISED * growth.rate_given
    )
    scheduler = next(
        (made for made in reversed(evidence.scheduler_sites) if made is not None), None
    )
    if raised and scheduler is not None:
        return scheduler, True
    return next((made for made in evidence.optimizer_sites if made is not None), None), False


def _what_grew(growth: Growth) -> str:
    if growth.norm is not None and growth.norm > 10:
        return f"the gradient norm grew {growth.norm:.3g}-fold"
    if growth.weights is not None and growth.weights > 3:
        return f"the weights grew {growth.weights:.3g}-fold"
    return (
        f"{growth.fastest} grew {growth.fastest_ratio:.3g}-fold"
        if growth.fastest
        else "the loss grew"
    )


def _explanation(
    growth: Growth, norms: list[float], birth: Birth | None, rate: float | None, *, raised: bool
) -> str:
    parts = []
    if growth.began is not None:
        parts.append(f"Since step {growth.began} the loss is more than twice its start.")
    if norms:
        parts.append(f"The gradient norm reached {max(norms):.3g}.")
    if growth.weights is not None and growth.weights > _WEIGHTS:
        parts.append(f"All weights together are {growth.weights:.3g} times as large as at step 0.")
    if raised:
        parts.append(
            f"The schedule had raised the learning rate from {growth.rate_given:.3g} to {rate:.3g}."
        )
    if birth is not None:
        parts.append(f"{_place(birth)} is where it ended; the updates are where it began.")
    return " ".join(parts) or "The loss kept growing."


def _place(birth: Birth) -> str:
    where = birth.site.location
    return f"{birth.site.short} at {where.file}:{where.line}" if where else birth.site.short


def _slower(course: RerunFacts) -> float | None:
    """The largest factor of the learning rate with which the steps stayed finite."""
    return max(
        (stretch.rate for stretch in course.stretches if stretch.passes and stretch.clip is None),
        default=None,
    )


def _fixes(
    growth: Growth,
    course: RerunFacts | None,
    rate: float | None,
    site: SourceSpan | None,
    *,
    raised: bool,
) -> list[Fix]:
    if course is None:
        return [
            Fix(
                title="lower the learning rate, clip the gradient norm, or shrink the initial "
                "weights",
                confidence="likely",
            )
        ]
    if not course.passing():
        title = (
            "look at the learning rate and its schedule, at the sign of the loss (maximize=True), "
            "and for gradients that are never cleared"
        )
        return [Fix(title=title, confidence="maybe")]
    found = []
    factor = _slower(course) or 0.1
    lower = f"{rate * factor:.3g}" if rate is not None and (growth.only_rate or raised) else None
    patch = (
        number_in_call(site, "lr", lower)
        if site is not None and lower is not None and growth.only_rate
        else None
    )
    title = f"multiply every learning rate by {factor:g}"
    if lower is not None:
        title = (
            f"let the schedule raise the learning rate to no more than {lower} here"
            if raised
            else f"lower the learning rate to {lower}"
        )
    found.append(
        Fix(
            title=title,
            patch=patch,
            confidence="likely",
            remedy=LowerRate(factor=factor),
        )
    )
    clip = next((stretch.clip for stretch in course.stretches if stretch.clip is not None), None)
    if clip is not None:
        clipping = Fix(
            title=f"clip the gradient norm to {clip:g} (torch.nn.utils.clip_grad_norm_)",
            confidence="likely",
            remedy=Clip(norm=clip),
        )
        found.insert(0 if _slower(course) is None else 1, clipping)
    return found
