"""## What it checks
Trainings that come to an end of their own: a learning rate that rose in every step and, when the
training ended, had not reached a tenth of what the optimizer was given.

## Why it matters
The warm-up was written for a longer training. The rate that was chosen is never used, and the model
is nearly what it was.

## Example
    TrainingArguments(max_steps=150, learning_rate=1e-3, warmup_steps=5000)

## Fix
    TrainingArguments(max_steps=150, learning_rate=1e-3, warmup_steps=15)

## See also
ND609 learning-rate-range
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan

_SHORTEST = 30  # steps
_FACTORS = 0.05  # a higher rate may be there to be multiplied by a schedule that gives rates


@rule(
    "ND652",
    "unfinished-warmup",
    "warning",
    "a warm-up that goes on when the training is over",
    needs=("stats", "loop"),
    thresholds={"reached": Threshold(0.1, "share of the optimizer's rate")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or not evidence.own_length or len(stats.rates) < _SHORTEST:
        return
    given = stats.given_rate
    if given is None or not 0 < given <= _FACTORS or not all(stats.rates):
        return
    rates = [max(step) for step in stats.rates]
    reached = rates[-1] / given
    if not _rises(rates) or reached >= check.limit(evidence, "reached"):
        return
    yield Claim(
        root=("rate",),
        specificity=Specificity.EXACT,
        stage=Stage.SCHEDULE,
        finding=rule.finding(
            confidence=confidence(0.7, 0.5 if _is_straight(rates) else 0.0),
            title=f"the warm-up had reached {reached:.1%} of the learning rate of {given:.3g} when "
            "the training ended",
            explanation=f"The rate rose in each of the {len(rates)} steps, to {rates[-1]:.3g}. At "
            f"this pace it would take {len(rates) / reached:.0f} steps to come to {given:.3g}.",
            culprit=Culprit(kind="optimizer", location=_place(evidence)),
            phase="optimizer",
            step=len(rates) - 1,
            evidence=(
                ("learning rate", f"{rates[0]:.3g} → {rates[-1]:.3g}"),
                ("given to the optimizer", f"{given:.3g}"),
            ),
            fixes=(
                Fix(
                    title="make the warm-up a part of the training: a tenth of its steps, or fewer",
                    confidence="likely",
                ),
            ),
        ),
    )


def _rises(rates: Sequence[float]) -> bool:
    """It never falls, and does not stand still for long."""
    pairs = list(pairwise(rates))
    rising = sum(later > earlier for earlier, later in pairs)
    return all(later >= earlier for earlier, later in pairs) and 2 * rising > len(pairs)


def _is_straight(rates: Sequence[float]) -> bool:
    half = rates[len(rates) // 2] - rates[0]
    return abs(2 * half - (rates[-1] - rates[0])) <= 0.1 * (rates[-1] - rates[0])


def _place(evidence: Evidence) -> SourceSpan | None:
    stats, loop = evidence.stats, evidence.loop
    if stats is not None and stats.warmup_at is not None:
        return stats.warmup_at
    schedulers = loop.schedulers if loop is not None else ()
    made = [one.built_at for one in schedulers] + list(evidence.optimizer_sites)
    return next((place for place in made if place is not None), None)
