"""## What it checks
The ratio of PPO: exp of a difference of log-probabilities that is multiplied by advantages and also
clamped. The new log-probability is subtracted from the stored one: old - new.

## Why it matters
The ratio then falls as an action becomes more probable, and the policy learns to avoid the actions
that paid off.

## Example
    ratio = torch.exp(old_logprob - new_logprob)

## Fix
    ratio = torch.exp(new_logprob - old_logprob)

## See also
ND636 minimised-return, ND643 rewarded-penalty
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import OF_TWO


@rule(
    "ND661",
    "inverted-ratio",
    "critical",
    "PPO's ratio of probabilities, upside down",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        taken = calls.maker(call.arguments[0]) if call.name == "exp" else None
        if taken is None or taken.name != "sub" or len(taken.arguments) != 2:
            continue
        kept, learns = taken.arguments
        if kept.requires_grad or not learns.requires_grad:
            continue
        sure = _sure_of_ratio(calls, call)
        if sure is None:
            continue
        yield learning_claim(
            rule,
            location_key(taken.site) or ("ratio", call.index),
            title="PPO's ratio is old over new: it falls as an action becomes more probable",
            explanation="The new log-probability is subtracted from the stored one. Multiplied "
            "by the advantages, the ratio makes the actions that paid off less probable.",
            culprit=at_call(taken, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.7, sure),
            notes=[("ratio at", call.site.place if call.site is not None else None)],
            fix="exp(new - old)",
            standing=WIRED,
        )
        return


def _sure_of_ratio(calls: StepCalls, ratio: CallFacts) -> float | None:
    """How much speaks for a ratio of PPO: it is clamped, and multiplied with something of its shape
    that does not learn; the smaller, or larger, of both is taken. None where it is not one."""
    users = _users(calls, ratio)
    clamped = [later for later in users if later.name == "clamp"]
    weighed = [
        later
        for later in users
        if later.name == "mul"
        and any(a.made_by != ratio.index and not a.requires_grad for a in later.arguments)
    ]
    if not clamped or not weighed:
        return None
    chosen = any(later.name in (*OF_TWO, "stack") for later in _users(calls, weighed[0]))
    return 0.7 if chosen else 0.3


def _users(calls: StepCalls, made: CallFacts) -> list[CallFacts]:
    return [
        later
        for later in calls.calls[made.index + 1 :]
        if any(argument.made_by == made.index for argument in later.arguments)
    ]
