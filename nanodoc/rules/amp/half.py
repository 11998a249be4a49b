"""ND306, ND405, ND406, ND408 and ND409: half precision itself: what it rounds to zero, who may not
be in it, and who isn't."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.amp import Flushed, HalfParameter
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.amp import half_docs as docs
from nanodoc.rules.base import count
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.forward.floats import LARGEST

# A parameter's gradient is hurt when most of its elements are rounded to zero, and they were no
# negligible part of it.
_SHARE = 0.5
_LOST_NORM = 0.1
# of the first loss: a run that has learnt its data has tiny gradients, and needs them no more
_DONE = 0.01
_NEAR = 4.0  # RULES: within 4x of the dtype's largest number
_SHOWN = 4


def hurt_by_underflow(evidence: Evidence) -> list[Flushed]:
    """Parameters whose gradient float16 rounds to zero for the larger part, the worst first."""
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return []
    finite = [loss for loss in evidence.losses if loss - loss == 0]
    if len(finite) >= 2 and abs(finite[-1]) < _DONE * abs(finite[0]):
        return []
    bad = [
        one
        for one in facts.flushed
        if one.kind == "gradient" and one.share > _SHARE and one.lost_norm > _LOST_NORM
    ]
    return sorted(bad, key=lambda one: (-one.share, one.name))


def _gradient_underflow(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hurt = hurt_by_underflow(evidence)
    facts = evidence.amp_facts
    if not hurt or facts is None or not facts.scaler_enabled:
        return
    scale = facts.steps[-1].scale if facts.steps else None
    worst = hurt[0]
    yield _underflow_claim(
        rule,
        evidence,
        hurt,
        severity="warning",
        location=worst.location,
        kind="op",
        title=f"{worst.share:.0%} of the gradient of {worst.name} is rounded to zero in "
        f"{worst.dtype}",
        explanation=f"At a loss scale of {scale:g} the elements are below 6e-8, {worst.dtype}'s smallest "
        f"number; in float32 they are not zero and make up {worst.lost_norm:.0%} of the "
        "gradient's norm."
        if scale is not None
        else "The elements are below 6e-8, float16's smallest number; in float32 they are not zero.",
        fixes=(
            Fix(
                title="run the module in float32, use bfloat16, or find out why the loss scale is "
                "this low",
                confidence="maybe",
            ),
        ),
    )


def _half_without_scaler(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hurt = hurt_by_underflow(evidence)
    facts = evidence.amp_facts
    if not hurt or facts is None or facts.dtype != "float16" or facts.scaler_enabled:
        return
    worst = hurt[0]
    backward = next((call.place for call in reversed(facts.calls) if call.kind == "backward"), None)
    off = "its GradScaler is switched off" if facts.has_scaler else "there is no GradScaler"
    whole = worst.share > 0.99
    yield _underflow_claim(
        rule,
        evidence,
        hurt,
        severity=rule.severity if whole else "warning",
        location=backward or facts.asked_at,
        kind="op" if backward is not None else "config",
        title=f"float16 autocast without a loss scale: {'all' if whole else f'{worst.share:.0%}'} "
        f"of the gradient of {worst.name} is rounded to zero",
        explanation=f"Autocast computes in float16 and {off}, so gradient elements below 6e-8 become zero "
        f"on their way back. In float32 {'they are all' if whole else 'they are'} nonzero.",
        fixes=(
            Fix(
                title="scale the loss with torch.amp.GradScaler, or use bfloat16",
                patch="scaler.scale(loss).backward()",
                confidence="likely",
            ),
        ),
    )


def _underflow_claim(
    rule: Rule,
    evidence: Evidence,
    hurt: list[Flushed],
    *,
    severity: str,
    location: SourceSpan | None,
    kind: str,
    title: str,
    explanation: str,
    fixes: tuple[Fix, ...],
) -> Claim:
    worst = hurt[0]
    listed = "; ".join(f"{one.name} {one.share:.0%}" for one in hurt[:_SHOWN])
    return Claim(
        root=("underflow",),
        specificity=Specificity.FAMILY,
        stage=Stage.PRECISION,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=severity,
            confidence=confidence(0.6, worst.share * 0.8, 0.3 if len(hurt) > 1 else 0.0),
            title=title,
            explanation=explanation,
            culprit=Culprit(
                kind=kind,
                op=worst.op,
                parameter=worst.name,
                module_type=worst.module_type,
                location=location,
            ),
            phase="backward",
            step=None,
            evidence=(
                ("rounded to zero", listed),
                ("parameters hurt", len(hurt)),
                ("lost of the norm", worst.lost_norm),
                *_at(worst),
            ),
            fixes=fixes,
        ),
    )


def _at(worst: Flushed) -> list[tuple[str, str]]:
    return (
        [("backward of", f"{worst.location.file}:{worst.location.line}")]
        if worst.location is not None
        else []
    )


def _half_parameters(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts, failure = evidence.amp_facts, evidence.failure
    if (
        facts is None
        or failure is None
        or "Attempting to unscale FP16 gradients" not in failure.message
        or not facts.half_parameters
    ):
        return
    half = facts.half_parameters
    by_place: dict[SourceSpan | None, list[HalfParameter]] = {}
    for one in half:
        by_place.setdefault(one.made_at, []).append(one)
    place, members = max(by_place.items(), key=lambda item: len(item[1]))
    names = ", ".join(one.name for one in half[:_SHOWN]) + (
        f" and {len(half) - _SHOWN} more" if len(half) > _SHOWN else ""
    )
    claim = failure_claim(
        rule,
        evidence,
        title=f"{count(len(half), 'trainable parameter')} in float16, which a GradScaler refuses to "
        "unscale",
        explanation=f"{names}: autocast wants float32 parameters and casts them for each op. A float16 "
        "gradient would lose in unscaling just what the scale had saved.",
        specificity=Specificity.SPECIAL,
        extra=[("float16 parameters", [one.name for one in half[:16]])],
        fixes=[
            Fix(
                title="keep the parameters in float32 (no .half(), no dtype=torch.float16) and let "
                "autocast cast",
                confidence="likely",
            )
        ],
    )
    first = members[0]
    culprit = Culprit(
        kind="parameter",
        parameter=first.name,
        module=first.module,
        module_type=first.module_type,
        location=place,
    )
    finding = replace(
        claim.finding,
        culprit=culprit,
        phase="setup",
        confidence=confidence(0.8, 0.5 if place is not None else 0.0),
    )
    yield replace(claim, finding=finding)


def _autocast_not_applied(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return
    wanted = [region for region in facts.regions if region.enabled and not region.nested]
    if not wanted or any(region.half_ops for region in facts.regions):
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
            f"The context is for {region.device}, and what runs in it is not there.",
        )
    elif not sum(one.float_matmuls for one in wanted) and region.float_matmuls_outside:
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
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=severity,
            confidence=confidence(0.7, 0.4 if region.place is not None else 0.0),
            title=f"autocast to {region.dtype} is asked for, and nothing runs in {region.dtype}",
            explanation=why,
            culprit=Culprit(
                kind="config" if region.place is None else "op",
                location=region.place or facts.asked_at,
            ),
            phase="forward",
            step=None,
            evidence=(
                ("ops inside", region.ops),
                ("in half precision", 0),
                ("matrix products in float32", region.float_matmuls),
            ),
            fixes=(
                Fix(
                    title="enter the context around the call of the model, for the device the model "
                    "is on",
                    confidence="maybe",
                ),
            ),
        ),
    )


def _low_headroom(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return
    near = [
        one
        for one in facts.headroom
        if one.dtype == "float16" and LARGEST["float16"] / _NEAR <= one.absmax <= LARGEST["float16"]
    ]
    if not near:
        return
    first = near[0]
    listed = "; ".join(f"{one.module or 'the model'} {one.absmax:.4g}" for one in near[:_SHOWN])
    yield Claim(
        root=("headroom",),
        specificity=Specificity.FAMILY,
        stage=Stage.PRECISION,
        position=1,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(
                0.5, first.absmax / LARGEST["float16"], 0.3 if first.location is not None else 0.0
            ),
            title=f"activations reach {first.absmax:.4g} in float16, which ends at 65504",
            explanation=f"{count(len(near), 'module')} within a factor of {_NEAR:g} of the end: {listed}. "
            "They would be the next to overflow.",
            culprit=Culprit(
                kind="op",
                op=first.op,
                module=first.module,
                module_type=first.module_type,
                location=first.location,
            ),
            phase="forward",
            step=None,
            evidence=(
                ("largest activation", first.absmax),
                ("headroom", LARGEST["float16"] / first.absmax),
            ),
            fixes=(
                Fix(
                    title=f"run {first.module or 'it'} in float32, or use bfloat16",
                    confidence="maybe",
                ),
            ),
        ),
    )


RULES = (
    Rule(
        code="ND306",
        name="gradient-underflow",
        severity="warning",
        summary="gradients that float16 rounds to zero",
        check=_gradient_underflow,
        doc=docs.UNDERFLOW,
    ),
    Rule(
        code="ND405",
        name="half-without-scaler",
        severity="critical",
        summary="float16 autocast without a GradScaler, and gradients lost to it",
        check=_half_without_scaler,
        doc=docs.WITHOUT_SCALER,
    ),
    Rule(
        code="ND406",
        name="half-parameters",
        severity="critical",
        summary="float16 parameters under a GradScaler",
        check=_half_parameters,
        doc=docs.PARAMETERS,
    ),
    Rule(
        code="ND408",
        name="autocast-not-applied",
        severity="warning",
        summary="an autocast context in which nothing runs in half precision",
        check=_autocast_not_applied,
        doc=docs.NOT_APPLIED,
    ),
    Rule(
        code="ND409",
        name="low-headroom",
        severity="info",
        summary="activations near float16's largest number",
        check=_low_headroom,
        doc=docs.HEADROOM,
    ),
)
