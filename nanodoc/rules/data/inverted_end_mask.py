"""## What it checks
Regressions whose target is a reward plus a network's value of the next state, as in Q-learning and
for critics. The last step is run again with the next states of other samples, which tells the
targets that read them. A sample's episode goes on if its next state is, value by value, another
sample's state: in the batch, or in what the code keeps of earlier steps. Reported if the targets of
samples whose episode goes on do not read the next state, and some of the others do.

## Why it matters
While an episode continues, nothing is learned about the future, and where it ended, the value of a
state that does not exist is added. The loss falls: such targets are easy to learn.

## Example
    target = reward + gamma * q_next * done

## Fix
    target = reward + gamma * q_next * (1 - done)

## See also
ND140 unread-end-flags; Mnih et al. 2015, Human-level control through deep reinforcement learning,
algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.bootstrapped import is_of_a_network, reads_next_states
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim

_FEWEST = 8  # samples whose episode goes on
_MANY = 24  # samples whose episode goes on: the more, the surer


@rule(
    "ND137",
    "inverted-end-mask",
    "critical",
    "values of the next state are used only where episodes end",
    needs=("inspection",),
    thresholds={"read": Threshold(0.05, "share of the samples that go on, and read what comes")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    seen = inspection.transitions if inspection is not None else None
    found = reads_next_states(calls) if calls is not None else None
    if calls is None or found is None or seen is None or seen.going_on < _FEWEST:
        return
    if not seen.read_ending:
        return  # a discount of 0, episodes of one step, or one value for all
    if seen.read_going_on > check.limit(evidence, "read") * seen.going_on:
        return
    factor = _factor(calls, found.value)
    left_out = 1 - (seen.read_going_on + seen.read_ending) / (seen.going_on + seen.ending)
    yield learning_claim(
        rule,
        location_key((factor or found.total).site) or ("targets", "ends"),
        title=f"{left_out:.0%} of the targets ignore the next state, though the episode goes on",
        explanation="The target is a reward plus a network's value of the next state. Of "
        f"{seen.going_on} samples whose next state is another sample's state, "
        f"{seen.read_going_on or 'none'} "
        f"{'has a target that changes' if seen.read_going_on < 2 else 'have targets that change'} "
        f"with it; of {seen.ending} others, {seen.read_ending}. That value should be left out only "
        "where an episode has ended.",
        culprit=at_call(factor or found.total, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.9, 0.3 if seen.going_on >= _MANY else 0.0),
        notes=[
            ("go on, and read the next state", f"{seen.read_going_on} of {seen.going_on}"),
            ("others that read it", f"{seen.read_ending} of {seen.ending}"),
        ],
        fix="multiply by 1 minus the flag",
        standing=WIRED,
    )


def _factor(calls: StepCalls, value: ArgumentFacts) -> CallFacts | None:
    """The product by a flag from outside, on the way from the network to the target."""
    made = calls.origin(value)
    while isinstance(made, CallFacts) and made.name == "mul":
        inner = next((a for a in made.arguments if is_of_a_network(calls, a)), None)
        if made.notes.product.ones is not None or inner is None:
            return made
        made = calls.origin(inner)
    return None
