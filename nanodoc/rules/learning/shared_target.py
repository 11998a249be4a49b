"""## What it checks
Networks that the last step asks without a gradient, and whose output is a part of the loss. One is
reported whose parameters are others than those of the network that learns, and lie in the same
memory: it was made as a copy, and is none any more.

## Why it matters
A target network or an average must change more slowly than the network that learns. One that shares
its memory moves with every step: the targets run away from what is trained on them.

## Example
    for slow, fast in zip(target.parameters(), online.parameters()):
        slow.data = fast.data              # from now on one memory

## Fix
    slow.data.copy_(fast.data)

## See also
ND142 unmoved-target, ND639 compared-with-itself
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, calls_of, learning_claim


@rule(
    "ND667",
    "shared-target",
    "warning",
    "a target network in the memory of the network that learns",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    if calls is None or inspection is None:
        return
    reaching = calls.reaching_the_loss()
    for asked in inspection.shared:
        if reaching.isdisjoint(range(asked.first, asked.last)):
            continue  # it acts, and is meant to be what was learnt so far
        yield learning_claim(
            rule,
            location_key(asked.asked_at) or ("shared", asked.module_type),
            title="the network that is asked for targets lies in the memory of the one that learns",
            explanation=f"The parameters of this {asked.module_type} are others than those that "
            "the optimizer holds, but they share their memory: each optimizer step moves both.",
            culprit=Culprit(kind="module", module_type=asked.module_type, location=asked.asked_at),
            step=len(evidence.losses) - 1,
            weight=confidence(0.9),
            fix="copy values, not tensors: slow.data.copy_(fast.data)",
            standing=WIRED,
        )
        return
