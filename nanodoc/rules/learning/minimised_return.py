"""## What it checks
A policy gradient over an episode in which an optimizer step makes the actions with the larger
discounted sum of rewards less probable. The weights of the log-probabilities are compared with each
list of numbers of that length; an optimizer with `maximize=True` is taken into account. An info
where the step reaches no environment with Gymnasium's interface (reset, step, action_space,
observation_space): the numbers may be costs, of which less is better.

## Why it matters
The policy learns to get as little reward as possible.

## Example
    losses.append(log_prob * ret)          # should be -log_prob * ret

## Fix
    losses.append(-log_prob * ret)

## See also
ND635 misordered-returns; Williams 1992, Simple statistical gradient-following algorithms
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_LONG = 12  # actions: the more weights fit, the surer


@rule(
    "ND636",
    "minimised-return",
    "critical",
    "a policy gradient that makes rewarded actions less probable",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.returns if inspection is not None else None
    if inspection is None or seen is None or seen.order != "to-go" or seen.rising:
        return
    yield learning_claim(
        rule,
        location_key(seen.weighted_at) or ("returns", "sign"),
        severity="critical" if seen.of_environment else "info",  # else they may be costs
        title="a step makes the actions with the larger return less probable",
        explanation="The loss of the last episode rises with the log-probability of an action "
        f"times its discounted sum of {seen.rewards}: the optimizer, which minimises the "
        "loss, minimises the return.",
        culprit=Culprit(kind="op", op="mul", location=seen.weighted_at),
        step=inspection.step,
        weight=confidence(0.85, 0.4 if seen.actions >= _LONG else 0.0),
        notes=[
            ("rewards", seen.rewards),
            ("discount", f"{seen.discount:.3g}"),
            ("actions", seen.actions),
        ],
        fix="give the loss a minus sign: -log_prob * return",
        standing=WIRED,
    )
