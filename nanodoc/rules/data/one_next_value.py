"""## What it checks
Regressions whose target is a reward plus a network's value of the next state, as in Q-learning and
for critics. The last step is run again twice: with the next states of other samples, and with all
of them changed. Reported if no target changes when the samples exchange theirs, and most change
together.

## Why it matters
Each sample is given one and the same value of what comes next: a maximum over the batch in place of
one over the actions, or a mean over all. Which state an action leads to is not learned.

## Example
    best = target_net(after).max()
    target = reward + gamma * best

## Fix
    best = target_net(after).max(1).values

## See also
ND137 inverted-end-mask
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.bootstrapped import Bootstrapped, reads_next_states
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import LAYERS


@rule(
    "ND174",
    "one-next-value",
    "critical",
    "one value of the next state for all samples",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    seen = inspection.transitions if inspection is not None else None
    found = reads_next_states(calls) if calls is not None else None
    if calls is None or found is None or seen is None:
        return
    if seen.read_going_on or seen.read_ending or not seen.together:
        return
    if 2 * (seen.going_on + seen.ending) < seen.samples:
        return  # most next states are alike: exchanged, they tell nothing
    made = _joined(calls, found, seen.samples)
    yield learning_claim(
        rule,
        location_key(made.site) or ("targets", "together"),
        title=f"{seen.samples} samples are given one and the same value of the next state",
        explanation="The target is a reward plus a network's value of the next state. Where the "
        f"{seen.samples} samples exchange their next states, no target changes; where all next "
        "states are others, most targets change. The value is one of the whole batch.",
        culprit=at_call(made, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.85),
        notes=[("samples", seen.samples)],
        fix="take the value of each sample's own next state: a maximum over the actions, not over "
        "the batch",
        standing=WIRED,
    )


def _joined(calls: StepCalls, found: Bootstrapped, samples: int) -> CallFacts:
    """The first call on the way to the target that is given rows of samples and gives none."""
    for index in sorted(calls.behind(found.value)[0]):
        made = calls.calls[index]
        rows = any(samples in argument.shape for argument in made.arguments)
        if made.name not in LAYERS and rows and samples not in made.shape:
            return made
    return found.total
