"""ND609: a loss that ends far above where a smaller learning rate ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import NO_BETTER, late_loss
from nanodoc.facts.rates import compared, slow_enough
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import Stretch
from nanodoc.rules.base import Told
from nanodoc.rules.learning.written_rate import of_the_scale, overwriting_schedule, scaled_rate


def too_high(rule: Rule, evidence: Evidence) -> Claim | None:
    """A loss that ends far above where a smaller learning rate ends on the same batches."""
    course = evidence.pattern.slower if evidence.pattern is not None else None
    losses = compared(evidence)
    late = late_loss(losses)
    slower = slow_enough(evidence, course)
    if slower is None or slower.last_loss is None:
        return None
    if evidence.pattern is not None and evidence.pattern.far is not None:
        return None  # ND107: with standardised inputs the rate does better than a smaller one
    rate = evidence.learning_rates[0] if evidence.learning_rates else None
    site = next((made for made in evidence.optimizer_sites if made is not None), None)
    patch, lower = scaled_rate(evidence, site, slower.rate)
    rates = {rate for step in evidence.stats.rates for rate in step} if evidence.stats else set()
    if lower is None and rate and len(rates) == 1:
        lower = f"{rate * slower.rate:.3g}"
    told = (
        f"the same {len(losses)} steps end at a loss of {slower.last_loss:.3g} instead of "
        f"{late:.3g}"
    )
    if slower.highest is not None:
        patch, lower = None, f"{slower.highest:.3g}"
    growth = evidence.pattern.growth if evidence.pattern is not None else None
    by_hand = growth.rate_set_at if growth is not None else None
    scaled = evidence.pattern.scaled if evidence.pattern is not None else None
    of_scale = scaled is not None and scaled.line is not None and slower.highest is None
    how = f"no more than {lower}" if slower.highest is not None else f"{slower.rate:g} of it"
    claim = rate_claim(
        rule,
        severity="critical" if late > NO_BETTER * losses[0] else "warning",
        weight=0.85,
        title=f"the learning rate is too high: the loss went from {evidence.losses[0]:.3g} to "
        f"{late:.3g}",
        explanation=f"With {how} {told}."
        + (f" {of_the_scale(scaled)}" if scaled is not None and of_scale else ""),
        location=(scaled.line if scaled is not None and of_scale else None)
        or (evidence.stats.raised_at if evidence.stats else None)
        or by_hand
        or _rising(evidence, slower)
        or overwriting_schedule(evidence)
        or next((at for at in evidence.rate_sites if at is not None), None),
        step=len(evidence.losses) - 1,
        notes=[
            ("learning rate", rate),
            ("loss at the start", evidence.losses[0]),
            ("loss of the last quarter", late),
            (f"with {how}", slower.last_loss),
        ],
        fix="",
    )
    fix = Fix(
        title=_cure(slower, lower, of_the_loss=of_scale),
        patch=patch if not of_scale else None,
        verified=True,
        outcome=told,
    )
    return replace(
        claim, stage=Stage.LEARNING, position=-1, finding=replace(claim.finding, fixes=(fix,))
    )


def _cure(slower: Stretch, lower: str | None, *, of_the_loss: bool) -> str:
    """`lower`: the rate that does, where it can be written down."""
    if of_the_loss:
        return "take the mean, or lower the learning rate by as much"
    if slower.highest is not None:
        return f"let the learning rate rise no higher than {lower}"
    return (
        f"lower the learning rate to {lower}"
        if lower
        else f"multiply every learning rate by {slower.rate:g}"
    )


def _rising(evidence: Evidence, slower: Stretch) -> SourceSpan | None:
    """The only schedule, where a rate that did not rise would do."""
    made = [site for site in evidence.scheduler_sites if site is not None]
    return made[0] if slower.highest is not None and len(made) == 1 else None


def rate_claim(
    rule: Rule,
    *,
    location: SourceSpan | None,
    step: int,
    notes: list[tuple[str, object]],
    fix: str,
    weight: float,
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on the learning rate, with one fix; notes without a value are left
    out."""
    return Claim(
        root=("rate",),
        specificity=Specificity.SPECIAL,
        stage=Stage.SCHEDULE,
        finding=rule.finding(
            confidence=confidence(weight, 0.5),
            **told,
            culprit=Culprit(kind="optimizer", location=location),
            phase="optimizer",
            step=step,
            evidence=tuple((label, value) for label, value in notes if value),
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )
