"""## What it checks
An optimizer that holds tensors that belong to no known module and have no gradient, while
parameters of the model are in no optimizer: a layer was replaced, or the model copied, after the
optimizer was created.

## Why it matters
The optimizer updates the old layer; the new one never learns.

## Example
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head = nn.Linear(512, classes)

## Fix
Create the optimizer after the last change to the model.

## See also
ND506 parameter-not-in-optimizer
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count, effects
from nanodoc.rules.graph.cut_claims import names
from nanodoc.rules.graph.owners import is_replaced


@rule(
    "ND507",
    "stale-optimizer",
    "critical",
    "the optimizer holds tensors the model no longer has",
    needs=("ownership",),
    preflight="optimizer",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.ownership
    if facts is None or not is_replaced(facts):
        return
    missing = facts.neglected
    if not missing:
        return
    first = missing[0]
    built = facts.optimizers[0] if facts.optimizers else None
    where = facts.replaced_at[-1] if facts.replaced_at else built
    notes = (
        (("optimizer made at", built.place),) if built is not None and where is not built else ()
    )
    yield Claim(
        root=("owner", "missing"),
        specificity=Specificity.SPECIAL,
        stage=Stage.OWNERSHIP,
        finding=rule.finding(
            confidence=confidence(0.8, 0.4 if facts.replaced_at else 0.0, 0.3 if where else 0.0),
            title=f"the optimizer holds {count(len(facts.stale), 'tensor')} that the model no "
            "longer has",
            explanation="It was created before the model was complete: "
            f"{names([p.name for p in missing])} came later, "
            + ("gets" if len(missing) == 1 else "get")
            + " gradients, and no optimizer has "
            + ("it" if len(missing) == 1 else "them")
            + f", while {count(len(facts.stale), 'tensor')} that it holds "
            + ("belongs" if len(facts.stale) == 1 else "belong")
            + " to no module.",
            culprit=Culprit(
                kind="parameter",
                module=first.module or None,
                module_type=first.module_type,
                parameter=first.name,
                location=where,
            ),
            phase="setup",
            step=None,
            evidence=notes,
            effects=effects(evidence),
            fixes=(
                Fix(
                    title="create the optimizer after the last change to the model",
                    confidence="likely",
                ),
            ),
        ),
    )
