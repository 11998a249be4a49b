"""## What it checks
Runs that finish by themselves in which the rate of step n was n / N of the rate that each group of
the optimizer was given, for a whole number N of at least ten times the steps.

## Why it matters
The warm-up was meant for a longer run. The chosen rate is never reached, and the model has hardly
changed.

## Example
    TrainingArguments(max_steps=150, learning_rate=1e-3, warmup_steps=5000)

## Fix
    TrainingArguments(max_steps=150, learning_rate=1e-3, warmup_steps=15)

## See also
ND609 learning-rate-range
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import RunStatistics
from nanodoc.facts.rates import warmup_length
from nanodoc.facts.source import SourceSpan

_FACTORS = 0.05
"""A higher rate may be there to be multiplied by a schedule that gives rates, such as Noam's; it is
believed where a line of the user's says how long the warm-up is."""


@rule(
    "ND652",
    "unfinished-warmup",
    "warning",
    "a warm-up longer than the training",
    needs=("stats", "loop"),
    thresholds={
        "reached": Threshold(0.1, "share of the optimizer's rate"),
        "steps": Threshold(30, "fewest steps of a run that is checked"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or not evidence.own_length:
        return
    steps, length = len(stats.rates), _length(stats)
    if length is None or steps < check.limit(evidence, "steps"):
        return
    if steps >= check.limit(evidence, "reached") * length:
        return
    given, rates = stats.given_rates[0], [step[0] for step in stats.rates]
    if given is None or (given > _FACTORS and stats.warmup_at is None):
        return
    yield Claim(
        root=("rate",),
        specificity=Specificity.EXACT,
        stage=Stage.SCHEDULE,
        finding=rule.finding(
            confidence=confidence(0.8, 0.5),
            title=f"the warm-up of {length} steps had reached {steps / length:.1%} of the learning "
            f"rate of {given:.3g} when the training ended",
            explanation=f"The training has {steps} steps, and in each of them the rate rose by the "
            f"same amount, to {rates[-1]:.3g}.",
            culprit=Culprit(kind="optimizer", location=_place(evidence)),
            phase="optimizer",
            step=steps - 1,
            evidence=(("learning rate", f"{rates[1]:.3g} → {rates[-1]:.3g}"),),
            fixes=(
                Fix(
                    title="make the warm-up a part of the training: at most a tenth of its steps",
                    confidence="likely",
                ),
            ),
        ),
    )


def _length(stats: RunStatistics) -> int | None:
    """Of the warm-up that all groups have in common."""
    if not stats.given_rates or any(len(step) != len(stats.given_rates) for step in stats.rates):
        return None
    lengths = {
        warmup_length([step[group] for step in stats.rates], given)
        for group, given in enumerate(stats.given_rates)
    }
    return lengths.pop() if len(lengths) == 1 else None


def _place(evidence: Evidence) -> SourceSpan | None:
    stats, loop = evidence.stats, evidence.loop
    if stats is not None and stats.warmup_at is not None:
        return stats.warmup_at
    schedulers = loop.schedulers if loop is not None else ()
    made = [schedule.built_at for schedule in schedulers] + list(evidence.optimizer_sites)
    return next((place for place in made if place is not None), None)
