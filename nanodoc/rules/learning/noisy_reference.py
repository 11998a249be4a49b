"""## What it checks
Networks that the step calls but does not train (a teacher, a reference policy, a perceptual loss),
with dropout or batch norm layers that ran in training mode. A network that the run itself updates,
such as a moving average, or whose outputs feed a trained layer, is not reported.

## Why it matters
Its outputs vary at random or with the rest of the batch, and the model learns that noise. A module
is in training mode until eval() is called.

## Example
    teacher = Net(); teacher.load_state_dict(torch.load("teacher.pt"))
    with torch.no_grad():
        wanted = teacher(x)

## Fix
    teacher.eval()

## See also
ND613 wrong-mode, ND642 validated-in-training-mode
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND648",
    "noisy-reference",
    "warning",
    "a network that is not trained runs in training mode",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    for found in inspection.still if inspection is not None else ():
        layers = " and ".join(found.layers)
        yield learning_claim(
            rule,
            location_key(found.asked_at) or ("reference", found.module_type),
            title=f"{found.module_type} is not trained, but runs in training mode",
            explanation=f"No optimizer holds a parameter of {found.module_type}, no trained layer "
            f"uses its output, and no step has changed its weights. But its {layers} ran in "
            "training mode.",
            culprit=Culprit(kind="module", module_type=found.module_type, location=found.asked_at),
            step=inspection.step if inspection is not None else None,
            weight=0.9,  # seen while the step ran
            notes=[("layers in training mode", layers)],
            fix="call .eval() on it once, where it is made",
            standing=WIRED,
        )
        return
