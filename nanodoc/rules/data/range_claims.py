"""ND102, ND103: indices and labels beyond what they index."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import USUAL_CAUSE, Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.crash import CrashFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import effects
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.crash.left_range import left_fix, left_in_step, looked_up, told_of


def range_claim(
    rule: Rule,
    evidence: Evidence,
    found: RangeFacts,
    *,
    title: str,
    explanation: str,
    fix: str,
    cause: str = "",
) -> Claim:
    """`cause` is the usual one, where the explanation does not say it."""
    left = left_in_step(evidence, found.size - 1)
    notes = _notes(found, cause)
    culprit = _culprit(evidence, found)
    if left is not None:
        explanation = f"{explanation} {told_of(left)}"
        notes = (*looked_up(left, culprit.location), *notes)
        culprit = replace(culprit, kind="op", op=left.op.short, location=left.op.site)
        fix = left_fix(left) or fix
    if evidence.failure is not None:
        claim = failure_claim(
            rule,
            evidence,
            title=title,
            explanation=explanation,
            fixes=[Fix(title=fix, confidence="likely")],
            # an index that was computed of NaN is any number
            specificity=Specificity.FALLBACK
            if any(leaf.kind == "batch" for leaf in evidence.leaves)
            else Specificity.EXACT,
            extra=notes,
        )
        finding = replace(
            claim.finding,
            culprit=culprit,
            confidence=confidence(0.9, 0.6),
            effects=effects(evidence),
            phase="forward",
            evidence=(*notes, *claim.finding.evidence[len(notes) :]),
        )
        return replace(claim, finding=finding)
    return Claim(
        root=("failure",),
        specificity=Specificity.EXACT,
        finding=rule.finding(
            confidence=confidence(0.9, 0.4),
            title=title,
            explanation=explanation,
            culprit=culprit,
            phase="forward",
            step=0,
            evidence=notes,
            fixes=(Fix(title=fix, confidence="likely"),),
        ),
    )


def _culprit(evidence: Evidence, found: RangeFacts) -> Culprit:
    samples, known = _samples(evidence.crash or CrashFacts(), found)
    criterion = evidence.criterion_site if found.label else None
    return Culprit(
        kind="data",
        op=found.function,
        module=found.module,
        module_type=found.module_type,
        samples=samples,
        dataset_indices=known,
        location=found.called_from or found.location or criterion,
    )


def _notes(found: RangeFacts, cause: str) -> tuple[tuple[str, Any], ...]:
    return (
        *([(USUAL_CAUSE, cause)] if cause else []),
        ("value", found.value),
        ("position", str(list(found.position))),
        ("out of range", f"{found.count} of {_size(found.shape)}"),
    )


def _samples(crash: CrashFacts, found: RangeFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(samples of the batch, their places in the data set) as far as they are known. Labels of
    sequences are often flattened before the loss."""
    rows, size = found.rows, crash.batch_size or 0
    target = crash.call.given[1] if crash.call is not None and len(crash.call.given) > 1 else None
    straight = target is not None and target.of_batch
    samples = found.samples
    if (
        found.label
        and straight
        and len(found.shape) == 1
        and size
        and rows > size
        and rows % size == 0
    ):
        samples = tuple(dict.fromkeys(i // (rows // size) for i in samples))
    elif rows != size:  # positions, edges, items of bags: no rows of the batch
        return (), crash.indices if len(crash.indices) == 1 else ()
    return samples, tuple(crash.indices[i] for i in samples) if len(crash.indices) == size else ()


def _size(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
