"""## What it checks
Runs that finish by themselves after at least 300 steps, with regressions whose target is a reward
plus a second network's value of the next state. Reported if nothing has written into that network
since the first step.

## Why it matters
A target network should follow the one that learns. If it never changes, the targets are forever the
values of a random network.

## Example
    target_net = copy.deepcopy(q_net)
    ...                                   # and no target_net.load_state_dict(q_net.state_dict())

## Fix
    if step % 500 == 0:
        target_net.load_state_dict(q_net.state_dict())

## See also
ND140 unread-end-flags; Mnih et al. 2015, Human-level control through deep reinforcement learning,
algorithm 1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.bootstrapped import bootstrapped
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, calls_of, learning_claim


@rule(
    "ND142",
    "unmoved-target",
    "warning",
    "a target network that is never updated",
    needs=("inspection",),
    thresholds={"steps": Threshold(300, "fewest steps of a run that is checked")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    steps = len(evidence.losses)
    if calls is None or inspection is None or not evidence.own_length:
        return
    if steps < check.limit(evidence, "steps"):
        return
    for total, value in ((one.total, one.value) for one in bootstrapped(calls)):
        made = calls.maker(value)
        behind = calls.behind(made)[0] if made is not None else set()
        asked = next(
            (n for n in inspection.unmoved if not behind.isdisjoint(range(n.first, n.last))), None
        )
        if asked is None:
            continue
        yield learning_claim(
            rule,
            location_key(asked.asked_at) or ("target", asked.module_type),
            title=f"in {steps} steps nothing has changed the network that gives the next values",
            explanation="The target is a reward plus the value of the next state from "
            f"{asked.module_type}. No optimizer holds its parameters, and their values are "
            "those of the first step.",
            culprit=Culprit(kind="module", module_type=asked.module_type, location=asked.asked_at),
            step=steps - 1,
            weight=confidence(0.8, 0.3),
            notes=[("the target", total.site.place if total.site is not None else None)],
            fix="copy the weights of the network that learns into it from time to time, or "
            "average them",
            standing=WIRED,
        )
        return
