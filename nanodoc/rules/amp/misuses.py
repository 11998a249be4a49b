"""ND402, ND403, ND404 and ND407: what the loss scale went through, and the order of GradScaler
calls."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.amp import (
    BACKWARD_AFTER_UNSCALE,
    CLIPPED_SCALED,
    FRESH_SCALER,
    NEVER_SCALED,
    SCALE_DISCARDED,
    UPDATE_BETWEEN,
    ScalerMisuse,
)
from nanodoc.facts.evidence import Evidence


def misuses_of(evidence: Evidence, kind: str) -> list[ScalerMisuse]:
    facts = evidence.amp_facts
    return [misuse for misuse in facts.misuses if misuse.kind == kind] if facts is not None else []


def misuse_claim(
    rule: Rule,
    evidence: Evidence,
    misuse: ScalerMisuse,
    *,
    title: str,
    explanation: str,
    fix: Fix,
    extra: Iterable[tuple[str, object]] = (),
) -> Claim:
    facts = evidence.amp_facts
    assert facts is not None
    place, other = misuse.place, misuse.other
    blamed = other if misuse.kind == BACKWARD_AFTER_UNSCALE and other is not None else place
    mild = misuse.kind == UPDATE_BETWEEN or (misuse.kind == FRESH_SCALER and not facts.skipped)
    beside = other if blamed is place else place
    related = (
        [("the other call", f"{beside.place}: {beside.code.splitlines()[0]}")]
        if beside is not None and beside != blamed
        else []
    )
    return Claim(
        root=("scaler-call", misuse.kind),
        specificity=Specificity.FAMILY,
        stage=Stage.WEIGHTS,  # a wrong order of calls explains whatever values it leads to
        finding=rule.finding(
            severity="warning" if mild else rule.severity,
            confidence=confidence(
                0.6,
                0.3 if blamed is not None else 0.0,
                0.6 if misuse.steps > 1 else 0.2,
                0.5 if misuse.norm is not None else 0.0,
            ),
            title=title,
            explanation=explanation,
            culprit=Culprit(kind="op", location=blamed),
            phase="backward"
            if misuse.kind in (NEVER_SCALED, SCALE_DISCARDED)
            else "unscale"
            if misuse.kind == CLIPPED_SCALED
            else "optimizer",
            step=misuse.first_step,
            evidence=(*extra, ("loss scale", misuse.scale), ("steps", misuse.steps), *related),
            fixes=(fix,),
        ),
    )
