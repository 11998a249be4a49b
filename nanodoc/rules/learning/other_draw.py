"""## What it checks
A policy gradient over an episode: for each log-probability that is weighted with the rewards, the
draws of its distribution. Reported if most are those of another draw than the first one, which
acted.

## Why it matters
The rewards are those of the action that was taken, and make another one more probable: what is
learned has nothing to do with what happened.

## Example
    chances = Categorical(logits=policy(state))
    state, reward, done = env.step(chances.sample())
    log_probs.append(chances.log_prob(chances.sample()))

## Fix
    action = chances.sample()
    state, reward, done = env.step(action)
    log_probs.append(chances.log_prob(action))

## See also
ND635 misordered-returns, ND636 minimised-return; Williams 1992, Simple statistical
gradient-following algorithms
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND679",
    "other-draw",
    "critical",
    "rewards that weigh another action than the one that was taken",
    needs=("inspection",),
    thresholds={"share": Threshold(0.9, "of the log-probabilities that are of a later draw")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.returns if inspection is not None else None
    if inspection is None or seen is None:
        return
    if seen.redrawn < check.limit(evidence, "share") * seen.actions:
        return
    yield learning_claim(
        rule,
        location_key(seen.asked_at) or ("returns", "draws"),
        title="the log-probabilities are those of other draws than the ones that acted",
        explanation=f"The rewards of an episode weigh {seen.actions} log-probabilities. "
        f"{seen.redrawn} of them are those of a second draw of their distribution; that of the "
        "first one, which acted, was not asked for.",
        culprit=Culprit(kind="op", location=seen.asked_at),
        step=inspection.step,
        weight=confidence(0.85),
        notes=[("rewards", seen.rewards)],
        fix="draw once, and ask for the log-probability of that draw",
        standing=WIRED,
    )
