"""## What it checks
One module object with parameters that appears several times in an nn.Sequential, nn.ModuleList or
nn.ModuleDict.

## Why it matters
The model appears to have many layers, but they share the weights of one. If sharing is intended,
call the one layer in a loop, which makes that clear.

## Example
    self.layers = nn.ModuleList([layer] * 6)

## Fix
    self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(6))

## See also
ND514 unregistered-module
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence


@rule(
    "ND515",
    "repeated-module",
    "warning",
    "the same layer several times in a container",
    needs=("ownership",),
    preflight="optimizer",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    for repeated in facts.repeated if facts is not None else ():
        times = len(repeated.positions)
        yield Claim(
            root=("owner", "repeated", repeated.container),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            position=-2,
            finding=rule.finding(
                confidence=confidence(0.6, 0.3 if repeated.registered_at else 0.0),
                title=f"the same {repeated.module_type} appears {times} times in "
                f"{repeated.container or repeated.container_type}",
                explanation=f"{', '.join(repeated.positions[:4])}{' …' if times > 4 else ''} are "
                f"one object: {times} layers share one set of {repeated.parameters} weights. "
                "`[layer] * n` repeats the reference and makes no copies.",
                culprit=Culprit(
                    kind="module",
                    module=repeated.positions[0],
                    module_type=repeated.module_type,
                    location=repeated.registered_at,
                ),
                phase="setup",
                step=None,
                evidence=(("positions", times), ("parameters shared", repeated.parameters)),
                fixes=(
                    Fix(
                        title="create one layer per position: [Layer(...) for _ in range(n)], or "
                        "copy.deepcopy(layer)",
                        confidence="likely",
                    ),
                ),
            ),
        )
