"""ND608, ND613, ND614, ND622–ND624, ND626: what the loop itself does wrong, told by the order of
its calls and the model's mode."""

from __future__ import annotations

from typing import Unpack

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import Remedy
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import (
    CARRIED,
    CLIPPED_LATE,
    DISCARDED,
    DROPPED,
    EARLY,
    LoopMisuse,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.base import Told, effects

_OFTEN = 3  # steps: once or twice may be an exception that the loop makes on purpose


_MOSTLY = 0.5  # of the steps that were watched


def loop_misuse(evidence: Evidence, kind: str) -> LoopMisuse | None:
    found = evidence.loop.misuse(kind) if evidence.loop is not None else None
    if found is None or found.steps < _OFTEN or found.steps < _MOSTLY * max(found.watched - 1, 1):
        return None
    return found


def misuse_claim(
    rule: Rule,
    evidence: Evidence,
    misuse: LoopMisuse,
    *,
    fix: str,
    root: tuple[object, ...] = (),
    notes: tuple[tuple[str, object], ...] = (),
    weight: float = 0.85,
    remedy: Remedy | None = None,
    **told: Unpack[Told],
) -> Claim:
    """The claim of `rule` on a misuse of the loop, with one fix."""
    other = misuse.other
    extra = (
        (("the backward before it", _line(other)),)
        if other is not None and misuse.kind in (CARRIED, DISCARDED, DROPPED, EARLY)
        else ()
    )
    extra = (
        (("the step it came after", _line(other)),)
        if other is not None and misuse.kind == CLIPPED_LATE
        else extra
    )
    return Claim(
        root=root or ("loop", misuse.kind),
        specificity=Specificity.EXACT,
        stage=Stage.LOOP,
        finding=rule.finding(
            confidence=confidence(
                weight,
                0.5 if misuse.steps >= misuse.watched - 2 else 0.1,
                0.3 if misuse.steps > 10 else 0.0,
            ),
            **told,
            culprit=Culprit(
                kind="optimizer",
                parameter=next(iter(misuse.parameters), None),
                location=misuse.location,
            ),
            phase="optimizer",
            step=misuse.first_step,
            evidence=(("on", f"{misuse.steps} of {misuse.watched} steps watched"), *extra, *notes),
            effects=effects(evidence),
            fixes=(Fix(title=fix, confidence="likely", remedy=remedy),),
        ),
    )


def _line(span: SourceSpan | None) -> str:
    return f"{span.place}: {span.code.splitlines()[0]}" if span is not None else "unknown"
