"""## What it checks
A cross entropy that did not fall in 100 steps or more, near the loss of guessing and outside of a
warm-up. The run's first steps are re-run from step 0: without clipping if a clip lets less than a
tenth of the gradient through, without weight decay, and with 10 to a million times the learning
rate. If one of these runs ends far lower on the same batches, that setting held the run back. In
runs of 40 to 99 steps only a million times the rate is tried, unless the weights hardly move.

If a schedule began a warm-up but never stepped, its line is reported.

## Why it matters
Nothing fails. The loss is flat, as it would be with a broken model.

## Example
    clip_grad_norm_(model.parameters(), max_norm=1e-4)

## Fix
A clip near the usual norm of the gradient, a smaller weight decay, or a larger learning rate.

## See also
ND609 learning-rate-range, ND607 loss-not-decreasing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import SchedulerFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import CLIPPING, RATE, HeldBackFacts
from nanodoc.rules.learning.claims import Standing, learning_claim
from nanodoc.rules.learning.written_rate import scaled_rate
from nanodoc.rules.rewrite import number_in_call


@rule(
    "ND630",
    "held-back-updates",
    "warning",
    "clipping, weight decay or a learning rate that keeps the model from learning",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    held = evidence.pattern.held_back if evidence.pattern is not None else None
    if held is None:
        return
    built = next((site for site in evidence.optimizer_sites if site is not None), None)
    site = held.site or built if held.kind == CLIPPING else built
    idle = _idle_schedule(evidence) if held.kind == RATE else None
    site = idle.built_at if idle is not None else site
    title, change = _words(held)
    told = (
        f"{change}, the first {held.steps} steps end at a loss of {held.without:.3g} instead of "
        f"{held.loss:.3g}"
    )
    claim = learning_claim(
        rule,
        # a rate that would have to be larger may be no more than a way around another cause
        ("slow",) if held.kind == RATE else ("rate", held.kind),
        standing=Standing(scope=Scope.LAYERS if held.kind == RATE else Scope.CAUSE, position=1),
        title=title,
        explanation=f"The loss went from {evidence.losses[0]:.3g} to {held.loss:.3g} and no "
        f"further. {told[0].upper()}{told[1:]}."
        + (f" {idle.type} should change the rate, but has never stepped." if idle else ""),
        culprit=Culprit(kind="optimizer", location=site),
        phase="optimizer",
        step=len(evidence.losses) - 1,
        # the more of the loss it takes away, the less can it be chance
        weight=confidence(0.6, 0.7 * (1 - held.without / held.loss)),
        notes=[
            (held.kind, held.value),
            (f"{_size(held)} before the clip", held.norm),
            ("late loss", held.loss),
            (f"late loss {change}", held.without),
        ],
        fix="",
    )
    yield replace(claim, finding=replace(claim.finding, fixes=(_fix(evidence, held, site, told),)))


def _idle_schedule(evidence: Evidence) -> SchedulerFacts | None:
    """The only schedule, where it has never stepped and the rate stayed below the one that the
    optimizer was given: what begins a warm-up."""
    schedulers = evidence.loop.schedulers if evidence.loop is not None else ()
    rates = {max(step) for step in (evidence.stats.rates if evidence.stats else ()) if step}
    only = schedulers[0] if len(schedulers) == 1 else None
    idle = only is not None and only.idle and only.built_at is not None and only.base is not None
    return only if only is not None and idle and max(rates, default=0) < (only.base or 0) else None


def _words(held: HeldBackFacts) -> tuple[str, str]:
    """(the title, what was changed)"""
    if held.kind == CLIPPING:
        return (
            f"gradients are clipped to {held.value:.3g} where their {_size(held)} is "
            f"{held.norm:.3g}: the loss does not fall",
            "without the clip",
        )
    if held.kind == RATE:
        rate = f" of {held.value:.3g}" if held.value is not None else ""
        return (
            f"the learning rate{rate} is too low: the loss does not fall",
            f"with {held.factor:g} times the learning rate",
        )
    decay = f" of {held.value:.3g}" if held.value is not None else ""
    return f"the weight decay{decay} keeps the model from learning", "without weight decay"


def _size(held: HeldBackFacts) -> str:
    by_value = held.site is not None and "clip_grad_value_" in held.site.code
    return "largest value" if by_value else "norm"


def _fix(evidence: Evidence, held: HeldBackFacts, site: SourceSpan | None, told: str) -> Fix:
    """The change that was tried, as a patch where it is a number in a call."""
    if held.kind == CLIPPING:
        return Fix(
            title="do not clip, or clip near the gradients' usual norm", verified=True, outcome=told
        )
    if held.kind != RATE:
        # groups may have decays of their own
        known = site if held.value is not None else None
        patch = number_in_call(known, "weight_decay", "0.0") if known is not None else None
        return Fix(title="use no weight decay", patch=patch, verified=True, outcome=told)
    if held.value is None:
        return Fix(title=f"learning rates × {held.factor:g}", verified=True, outcome=told)
    patch, rate = scaled_rate(evidence, site, held.factor)
    rate = rate or f"{held.factor * held.value:.3g}"
    return Fix(title=f"raise the learning rate to {rate}", patch=patch, verified=True, outcome=told)
