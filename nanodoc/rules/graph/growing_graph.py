"""## What it checks
Attributes of the model's modules and variables of the loss function or train_step that hold tensors
with a graph whose number of autograd nodes grows from step to step (checked in the first four
steps).

## Why it matters
Every step's graph stays in memory: it grows until the process is killed.

## Example
    self.total += loss      # for the log

## Fix
    self.total += loss.detach()

## See also
ND503 backward-twice
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key


@rule(
    "ND510",
    "growing-graph",
    "warning",
    "a value kept across steps keeps every step's graph alive",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.failure is not None:
        return
    for growing in evidence.growing:
        where = growing.kept_at
        nodes = " → ".join(map(str, growing.nodes))
        yield Claim(
            root=location_key(where) or ("growing", growing.name),
            specificity=Specificity.SPECIAL,
            stage=Stage.LEARNING,
            finding=rule.finding(
                confidence=confidence(0.7, 0.3 if where else 0.0),
                title=f"{growing.name} keeps the graph of every step",
                explanation=f"{growing.name} holds more autograd nodes after each step ({nodes}), "
                "along with everything those steps saved.",
                culprit=Culprit(kind="op", location=where),
                phase="forward",
                step=None,
                evidence=(("autograd nodes, step by step", nodes),),
                fixes=(
                    Fix(
                        title="keep numbers, not graphs: add .detach() (or .item()) to the "
                        f"values stored in {growing.name}",
                        confidence="likely",
                    ),
                ),
            ),
        )
