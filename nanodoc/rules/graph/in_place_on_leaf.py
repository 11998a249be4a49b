"""## What it checks
"A leaf Variable that requires grad is being used in an in-place operation": which parameter it is,
where it was made, and the line that writes to it.

## Why it matters
The step cannot run.

## Example
    self.weight[0] = 0      # in forward()

## Fix
Compute a new tensor (`weight = self.weight * mask`), or write under torch.no_grad() if the value
itself should change.

## See also
ND504 in-place-overwrite
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.graph.failure_claims import both_ends, family_of, innermost


@rule(
    "ND511",
    "in-place-on-leaf",
    "critical",
    "a parameter is written to in place inside the graph",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if family_of(evidence) != "leaf-write":
        return
    graph = evidence.graph
    name = graph.leaf_write if graph is not None else None
    registered = (
        next((p.registered_at for p in graph.parameters if p.name == name), None)
        if graph is not None
        else None
    )
    what = f"parameter {name}" if name else "a leaf tensor that requires gradient"
    yield both_ends(
        rule,
        evidence,
        innermost(evidence),
        title=f"{what} is written to in place",
        explanation="A leaf holds the values that the optimizer updates; autograd does not allow "
        "changing them inside a graph.",
        parameter=name,
        other=("made at", registered),
        fixes=(
            Fix(
                title="write to a new tensor, or write under torch.no_grad() if the value itself "
                "should change",
                confidence="likely",
            ),
        ),
        sure=0.8 if name else 0.5,
    )
