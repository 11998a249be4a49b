"""## What it checks
The parameters of each optimizer in the last step of trainings with several optimizers. Reported are
those that losses have gradients for, where each of these gradients is cleared before the optimizer
steps: what it steps with, leaves them out.

## Why it matters
They stay as they were made, though an optimizer holds them and they have gradients now and then. Of
two critics one judges at random, and whoever asks for the smaller of both learns to please it.

## Example
    loss = F.mse_loss(q1, target) + F.mse_loss(q1, target)     # q2 is left out

## Fix
    loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)

## See also
ND505 unused-parameter, ND677 idle-term
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
    "ND678",
    "untrained",
    "critical",
    "parameters whose gradients are always cleared before their optimizer steps",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, inspection = calls_of(evidence), evidence.inspection
    seen = inspection.untrained if inspection is not None else None
    if calls is None or seen is None:
        return
    loss, first = calls.calls[seen.loss], seen.names[0]
    count = len(seen.names)
    all_of_them = first + (f" and {count - 1} more" if count > 1 else "")
    yield learning_claim(
        rule,
        location_key(loss.site) or ("untrained", first),
        title=f"{count} parameters of an optimizer have no gradient when it steps",
        explanation=f"{all_of_them} have gradients of another loss alone, and these are cleared "
        f"before the optimizer that holds them steps. The loss that it steps with reaches "
        f"{seen.trained} other parameters of it.",
        culprit=Culprit(
            kind="parameter",
            parameter=first,
            module=first.rpartition(".")[0],
            location=loss.site,
        ),
        step=len(evidence.losses) - 1,
        weight=confidence(0.85),
        notes=[("untrained", ", ".join(seen.names[:8]))],
        fix="let the loss that this optimizer steps with reach them, or leave them out of it",
        standing=WIRED,
    )
