"""ND306, ND405, ND406, ND408 and ND409: half precision itself: what it rounds to zero, who may not
be in it, and who isn't."""

from __future__ import annotations

from typing import Unpack

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, CulpritKind, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.amp import Flushed
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import Told

# A parameter's gradient is hurt when most of its elements are rounded to zero, and they were no
# negligible part of it.
_SHARE = 0.5


_LOST_NORM = 0.1


# of the first loss: a run that has learnt its data has tiny gradients, and needs them no more
_DONE = 0.01


SHOWN = 4


def hurt_by_underflow(evidence: Evidence) -> list[Flushed]:
    """Parameters whose gradient float16 rounds to zero for the larger part, the worst first."""
    facts = evidence.amp_facts
    if facts is None or evidence.trip is not None or evidence.failure is not None:
        return []
    finite = [loss for loss in evidence.losses if loss - loss == 0]
    if len(finite) >= 2 and abs(finite[-1]) < _DONE * abs(finite[0]):
        return []
    bad = [
        flushed
        for flushed in facts.flushed
        if flushed.kind == "gradient" and flushed.share > _SHARE and flushed.lost_norm > _LOST_NORM
    ]
    return sorted(bad, key=lambda flushed: (-flushed.share, flushed.name))


def underflow_claim(
    rule: Rule,
    evidence: Evidence,
    hurt: list[Flushed],
    *,
    location: SourceSpan | None,
    kind: CulpritKind,
    fixes: tuple[Fix, ...],
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on the parameters in `hurt`, the worst first."""
    worst = hurt[0]
    listed = "; ".join(f"{flushed.name} {flushed.share:.0%}" for flushed in hurt[:SHOWN])
    return Claim(
        root=("underflow",),
        specificity=Specificity.FAMILY,
        stage=Stage.PRECISION,
        finding=rule.finding(
            confidence=confidence(0.6, worst.share * 0.8, 0.3 if len(hurt) > 1 else 0.0),
            **told,
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
                ("parameters affected", len(hurt)),
                ("lost share of the norm", worst.lost_norm),
                *_at(worst),
            ),
            fixes=fixes,
        ),
    )


def _at(worst: Flushed) -> list[tuple[str, str]]:
    return [("backward of", worst.location.place)] if worst.location is not None else []
