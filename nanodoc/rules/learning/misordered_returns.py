"""## What it checks
A policy gradient over an episode: the weight of each action's log-probability (or the critic's
target) is compared with the discounted sums of the episode's rewards. Reported if the weights are
the sums of the rewards up to the action, in either order, or the sums from the action on in reverse
order.

## Why it matters
An action should be rewarded for what comes after it. Here the first actions of an episode get the
credit of the last ones, and the policy learns little or the opposite.

## Example
    for reward in rewards:                  # from the first to the last
        total = reward + gamma * total
        returns.append(total)

## Fix
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.insert(0, total)

## See also
ND636 minimised-return; Sutton & Barto 2018, Reinforcement Learning, section 13.3
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
    "ND635",
    "misordered-returns",
    "critical",
    "actions that are rewarded for what came before them",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.returns if inspection is not None else None
    if inspection is None or seen is None or seen.order == "to-go":
        return
    site = seen.summed_at or seen.weighted_at
    so_far = seen.order != "reversed"
    yield learning_claim(
        rule,
        location_key(site) or ("returns",),
        title="actions are rewarded for what came before them"
        if so_far
        else "the returns of an episode are in the reverse order of its actions",
        explanation=f"The weights of the {seen.actions} actions of the last episode are "
        + (
            f"the sums of {seen.rewards} up to each action"
            + (", but with the last action's first" if seen.order == "so-far-reversed" else "")
            if so_far
            else f"the sums of {seen.rewards} from each action on, but with the last action's first"
        )
        + f", discounted with {seen.discount:.3g}. An action's return is the sum of the rewards "
        "from it on.",
        culprit=Culprit(kind="op", location=site),
        step=inspection.step,
        weight=confidence(0.85, 0.4 if seen.actions >= _LONG else 0.0),
        notes=[("rewards", seen.rewards), ("discount", f"{seen.discount:.3g}")],
        fix="sum the rewards from the last to the first, and insert each sum at the front",
        standing=WIRED,
    )
