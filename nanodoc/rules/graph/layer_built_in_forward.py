"""## What it checks
Modules with parameters that are created during the step, on the way to the loss. Checked only when
a step's graph is examined: if parameters without a gradient were seen, or in `nanodoc
check-grad-graph`.

## Why it matters
The layer has new random weights in every step and never learns.

## Example
    def forward(self, x):
        return nn.Linear(64, 10)(x)

## Fix
Create it in __init__.

## See also
ND505 unused-parameter
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import effects


@rule(
    "ND516",
    "layer-built-in-forward",
    "critical",
    "a layer built in every forward pass never learns",
    needs=("ownership",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    fresh = evidence.graph.fresh_parameters if evidence.graph is not None else ()
    for line in dict.fromkeys(span for _, span in fresh if span is not None):
        made = [name for name, span in fresh if span == line]
        yield Claim(
            root=("owner", "fresh", line.file, line.line),
            specificity=Specificity.SPECIAL,
            stage=Stage.OWNERSHIP,
            position=-3,
            finding=rule.finding(
                confidence=confidence(0.7, 0.6),
                title=f"{made[0].split('.')[0]} is built again in every forward pass",
                explanation=f"{', '.join(made[:4])} are created inside the step, with new random "
                "values each time; no optimizer ever holds them.",
                culprit=Culprit(kind="op", location=line),
                phase="forward",
                step=evidence.graph.step if evidence.graph else None,
                effects=effects(evidence),
                fixes=(
                    Fix(
                        title="create the layer in __init__ and call it in forward",
                        confidence="likely",
                    ),
                ),
            ),
        )
