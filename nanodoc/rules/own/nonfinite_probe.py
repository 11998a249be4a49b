"""## What it checks
Every tensor passed to `nanodoc.probe(tensor, "label")` while nanodoc runs the training. NaN or +inf
ends the run, even if the loss stays finite, and the step is examined backward from there: if the op
that made the value is known, the finding is about that op, and the probe is listed among its
effects.

## Why it matters
A marked tensor must stay finite, and a NaN that is masked out of the loss may come back.

## Example
    h = nanodoc.probe(self.norm(h), "after layer_norm")

## Fix
See the op that is named.

## Options
−inf alone is not reported, because masks consist of it; `--frames` shows it.

## See also
ND203 low-precision-overflow, ND201 domain-error
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import effects


@rule(
    "ND904",
    "nonfinite-probe",
    "critical",
    "a tensor marked with nanodoc.probe held NaN or +inf",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    """The label at which NaN or +inf was seen; what made it is another rule's finding, and then
    this one is its effect."""
    bad = next((probe for probe in evidence.probed if probe.bad), None)
    if bad is None or evidence.trip is None:
        return
    finite = (
        evidence.trip.loss is not None
        and evidence.trip.loss - evidence.trip.loss == 0
        and evidence.trip.gradients_finite
    )
    yield Claim(
        root=("probe",),
        specificity=Specificity.FALLBACK,
        stage=Stage.NOTE,
        finding=rule.finding(
            confidence=confidence(
                0.5,
                0.4 if bad.location is not None else 0.0,
                {"bitwise": 0.5, "tolerance": 0.3, "as_it_ran": 0.3}.get(evidence.reproduced, 0.0),
            ),
            title=f"probe {bad.label!r} saw {'NaN' if bad.maximum != bad.maximum else '+inf'}",
            explanation=f"{bad.dtype} of shape {list(bad.shape)}."
            + (" The loss and the gradients of the step are finite." if finite else ""),
            culprit=Culprit(kind="op", location=bad.location),
            phase="forward",
            step=evidence.trip.step,
            effects=effects(evidence),
        ),
    )
