"""## What it checks
A loss that is a sum (reduction="sum", or .sum() last) in a run whose median gradient norm is above
100.

## Why it matters
The right learning rate and clipping then depend on the batch size.

## Example
    loss = F.mse_loss(model(x), y, reduction="sum")

## Fix
    loss = F.mse_loss(model(x), y)

## See also
ND623 unscaled-accumulation
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import LARGE_GRADIENTS


@rule(
    "ND619",
    "sum-reduction",
    "info",
    "a loss summed over the batch, and large gradients",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    norms = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    if (
        calls is None
        or len(calls.losses) != 1
        or not norms
        or statistics.median(norms) < LARGE_GRADIENTS
    ):
        return
    loss = calls.calls[calls.losses[0]]
    if loss.reduction != "sum":
        return
    yield Claim(
        root=("sum-reduction",),
        specificity=Specificity.FALLBACK,
        stage=Stage.OUTCOME,
        scope=Scope.MODEL,
        finding=rule.finding(
            confidence=confidence(0.5, 0.5 if loss.options.get("reduction") == "sum" else 0.1),
            title="the loss is a sum over the batch, and the gradient norm is "
            f"{statistics.median(norms):.3g}",
            explanation="A summed loss and its gradients grow with the batch: learning rate and "
            "clipping have a different effect for every batch size.",
            culprit=Culprit(
                kind="op",
                op=loss.name,
                module=loss.module,
                module_type=loss.module_type,
                location=loss.site,
            ),
            phase="forward",
            step=0,
            evidence=(("median gradient norm", statistics.median(norms)),),
            fixes=(Fix(title="divide by the batch size (reduction='mean')", confidence="maybe"),),
        ),
    )
