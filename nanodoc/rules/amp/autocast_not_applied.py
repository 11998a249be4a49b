"""## What it checks
A step enters an enabled autocast context, but no op of the step gives a half-precision result: the
context is for a different device type, ends before the model is called, or everything inside it
runs in float32. The finding is at the first matrix product that ran in float32, if there is one.

If some matrix products ran in half precision and others did not, this is only information.

## Why it matters
The run gets neither the memory savings nor the speed of half precision, and its results differ from
those of a machine where autocast applies.

## Example
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x.cuda())

## Fix
Enter the context around the call of the model, for the device that the model is on.

## Options
If this machine does not have the context's device, this is only information.

## See also
ND405 half-without-scaler
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.amp import AmpFacts, AutocastRegion
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count


@rule(
    "ND408",
    "autocast-not-applied",
    "warning",
    "an autocast context in which nothing runs in half precision",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return
    wanted = [region for region in facts.regions if region.enabled and not region.nested]
    if any(region.half_ops for region in facts.regions):
        yield from _escaped(rule, wanted)
        return
    if not wanted:
        return
    region = wanted[0]
    if not region.available:
        severity, why = (
            "info",
            f"This machine has no {region.device} device, so torch switches the context off.",
        )
    elif not region.same_device:
        severity, why = (
            "warning",
            f"The context is for {region.device}, but the ops inside it run on a different device.",
        )
    elif not sum(region_.float_matmuls for region_ in wanted) and region.float_matmuls_outside:
        severity, why = (
            "warning",
            "The matrix products run outside the context: the model is called after it has ended.",
        )
    elif region.float_matmuls:
        severity, why = (
            "warning",
            f"{count(region.float_matmuls, 'matrix product')} inside it ran in float32.",
        )
    else:
        return  # nothing that autocast would cast
    yield Claim(
        root=("autocast",),
        specificity=Specificity.FAMILY,
        stage=Stage.PRECISION,
        finding=rule.finding(
            severity=severity,
            confidence=confidence(0.7, 0.4 if region.place is not None else 0.0),
            title=f"autocast to {region.dtype} is enabled, but nothing runs in {region.dtype}",
            explanation=why,
            culprit=_culprit(region, facts),
            phase="forward",
            step=None,
            evidence=(
                ("ops inside", region.ops),
                ("in half precision", 0),
                ("matrix products in float32", region.float_matmuls),
            ),
            fixes=(
                Fix(
                    title="enter the context around the call of the model, for the device the "
                    "model is on",
                    confidence="maybe",
                ),
            ),
        ),
    )


def _culprit(region: AutocastRegion, facts: AmpFacts) -> Culprit:
    """The first product that escaped, where products did; else the context."""
    escaped = region.escaped
    if region.available and region.same_device and escaped is not None and escaped.location:
        return Culprit(kind="op", op=escaped.op, module=escaped.module, location=escaped.location)
    return Culprit(
        kind="config" if region.place is None else "op", location=region.place or facts.asked_at
    )


def _escaped(rule: Rule, regions: Sequence[AutocastRegion]) -> Iterable[Claim]:
    """Some products in float32 beside others in half precision: it may be that autocast has no rule
    for them, so that this is only information."""
    for region in regions:
        first = region.escaped
        if first is None or first.location is None or not region.same_device:
            continue
        products = count(region.float_matmuls, "matrix product")
        yield Claim(
            root=("autocast", "escaped"),
            specificity=Specificity.FAMILY,
            stage=Stage.PRECISION,
            finding=rule.finding(
                severity="info",
                # one among many is the exception that it seems to be
                confidence=confidence(0.6, 1 - region.float_matmuls / region.matmuls),
                title=f"{products} of {region.matmuls} inside autocast ran in float32, the first "
                f"is {first.op}",
                explanation=f"The others ran in {region.dtype}. Autocast casts the inputs of the "
                "ops on its list; this one is not on it, writes into a tensor that is given "
                "(out=, or in place), or runs in code that autocast does not see.",
                culprit=Culprit(
                    kind="op", op=first.op, module=first.module, location=first.location
                ),
                phase="forward",
                step=None,
                evidence=(("in float32", region.float_matmuls), ("in all", region.matmuls)),
                fixes=(
                    Fix(title="cast its inputs by hand, or use torch.matmul", confidence="maybe"),
                ),
            ),
        )
        return
