"""## What it checks
The norm of every buffer and parameter of the model before the first step, at some steps and at the
end. A buffer is reported that grew a thousandfold and more, in one jump, or still tenfold in the
second half of the run. A parameter is reported that grew as far, still grows, and holds values of
10 and more. Running statistics of normalisation layers follow their inputs, and are left out.

## Why it matters
The loss need not show it: it may divide by the same values, or read them later. They overflow some
steps later, or lose all digits that matter.

## Example
    self.u = weight @ (weight.T @ self.u)      # never normalised

## Fix
Normalise the values, or check the factor of the update: an average has weights that sum to 1.

## See also
ND606 divergence
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import Standing, learning_claim


@rule(
    "ND665",
    "runaway-values",
    "warning",
    "a buffer or a weight that grows without bound",
    needs=("stats",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if stats is None or not stats.grown or evidence.trip is not None:
        return
    most = stats.grown[0]
    kind = "buffer" if most.buffer else "parameter"
    steps = len(evidence.losses)
    how = (
        f"It is {most.late:.3g} times as large as in the middle of the run"
        if most.late >= most.jump
        else f"It grew {most.jump:.3g}-fold between two of the steps that were looked at"
    )
    yield learning_claim(
        rule,
        ("runaway", most.name),
        standing=Standing(scope=Scope.CAUSE if most.at is not None else Scope.LAYERS),
        title=f"the {kind} {most.name} grew {most.times:.3g}-fold in {steps} steps",
        explanation=f"{how}, and its values are about {most.size:.3g} by now.",
        culprit=Culprit(
            kind="parameter",
            parameter=most.name,
            module=most.name.rpartition(".")[0],
            location=most.at,
        ),
        step=steps - 1,
        weight=confidence(0.6, 0.4 if most.at is not None else 0.0, 0.3 if most.late > 100 else 0),
        notes=[
            ("grew", f"{most.times:.3g}-fold"),
            ("in the second half", f"{most.late:.3g}-fold"),
            ("its values", f"{most.size:.3g}"),
            ("others", ", ".join(one.name for one in stats.grown[1:4]) or None),
        ],
        fix="normalise the values, or check the factors of the update: an average's sum to 1",
    )
