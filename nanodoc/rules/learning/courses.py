"""ND615, ND619: what is worth knowing of a loss's course and scale, and no cause for alarm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.diagnosis.thresholds import limit
from nanodoc.facts.evidence import Evidence

_AROUND = 10
_SHORTEST = 40
# a gradient norm at which clipping and weight decay stop meaning what they usually do
_LARGE = 100.0


def _loss_spike(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    losses = evidence.losses
    if len(losses) < _SHORTEST or not all(math.isfinite(loss) and loss > 0 for loss in losses):
        return
    for step in range(_AROUND, len(losses) - _AROUND):
        before, after = (
            statistics.median(losses[step - _AROUND : step]),
            statistics.median(losses[step + 1 : step + 1 + _AROUND]),
        )
        if losses[step] > limit(evidence, "loss-spike.times") * max(before, after):
            yield Claim(
                root=("spike",),
                specificity=Specificity.FALLBACK,
                stage=Stage.OUTCOME,
                scope=Scope.MODEL,
                finding=Finding(
                    code=rule.code,
                    name=rule.name,
                    severity=rule.severity,
                    confidence=confidence(
                        0.6, 0.5 if losses[step] > 100 * max(before, after) else 0.1
                    ),
                    title=f"the loss jumped to {losses[step]:.3g} at step {step} and came back",
                    explanation=f"The steps around it are at {before:.3g} and {after:.3g}: one batch that "
                    "is unlike the others, or one update that was too large.",
                    culprit=Culprit(kind="data"),
                    phase="forward",
                    step=step,
                    evidence=(("loss", losses[step]), ("before", before), ("after", after)),
                    fixes=(
                        Fix(
                            title=f"look at the batch of step {step}; clip the gradient norm",
                            confidence="maybe",
                        ),
                    ),
                ),
            )
            return


def _sum_reduction(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    norms = [norm for norm in evidence.grad_norms if math.isfinite(norm)]
    if calls is None or len(calls.losses) != 1 or not norms or statistics.median(norms) < _LARGE:
        return
    loss = calls.calls[calls.losses[0]]
    if loss.options.get("reduction") != "sum" and loss.name != "sum":
        return
    yield Claim(
        root=("sum-reduction",),
        specificity=Specificity.FALLBACK,
        stage=Stage.OUTCOME,
        scope=Scope.MODEL,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(0.5, 0.5 if loss.options.get("reduction") == "sum" else 0.1),
            title="the loss is a sum over the batch, and the gradient norm is "
            f"{statistics.median(norms):.3g}",
            explanation="A summed loss and its gradients grow with the batch: learning rate and clipping "
            "mean something else for every batch size.",
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


RULES = (
    Rule(
        code="ND615",
        name="loss-spike",
        severity="info",
        summary="a single loss ten times those around it",
        check=_loss_spike,
        doc="""\
## What it checks
A positive loss more than ten times the median of the ten steps before it and of the ten after it, in runs of 40 steps and more.

## Why it matters
One odd batch can undo the work of many steps; a spike that does not come back is a divergence.

## Fix
Look at the batch; clip the gradient norm.

## Options
None.

## See also
ND606 divergence
""",
    ),
    Rule(
        code="ND619",
        name="sum-reduction",
        severity="info",
        summary="a loss summed over the batch, and large gradients",
        check=_sum_reduction,
        doc="""\
## What it checks
A loss that is a sum (reduction="sum", or .sum() last) in a run whose median gradient norm is above 100.

## Why it matters
Learning rate and clipping then depend on the batch size.

## Example
    loss = F.mse_loss(model(x), y, reduction="sum")

## Fix
    loss = F.mse_loss(model(x), y)

## Options
None.

## See also
ND623 unscaled-accumulation
""",
    ),
)
