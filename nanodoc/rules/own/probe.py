"""ND901: what nanodoc saw once and could not see again."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Finding
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import effects, replay_row


def _not_reproduced(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    trip = evidence.trip
    if (
        trip is None
        or evidence.births
        or evidence.leaves
        or evidence.optimizers
        or evidence.failure is not None
        or evidence.probed
    ):
        return
    if evidence.reproduced == "no":
        text = (
            f"Step {trip.step} tripped, but the replay from its start was healthy or ran "
            f"differently. {evidence.reproduction_note}".strip()
        )
    else:
        text = (
            f"Step {trip.step} tripped and the replay did too, but no op could be named. "
            f"{evidence.reproduction_note}"
        ).strip()
    yield Claim(
        root=("not-reproduced",),
        specificity=Specificity.FALLBACK,
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            # it is certain that the step went wrong; that nothing in it can be named is only as
            # sure as the replay was exact
            confidence=confidence(0.3, 0.3 if evidence.reproduced == "bitwise" else 0.0),
            title="a step went wrong and could not be traced to an op",
            explanation=text
            + " Causes: state outside the model and the batch, a nondeterministic op, or a "
            "compiled part that fails only when compiled.",
            culprit=Culprit(kind="environment"),
            phase=trip.phase,
            step=trip.step,
            effects=effects(evidence),
            experiments=replay_row(evidence),
        ),
    )


def _nonfinite_probe(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
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
        finding=Finding(
            code=rule.code,
            name=rule.name,
            severity=rule.severity,
            confidence=confidence(
                0.5,
                0.4 if bad.location is not None else 0.0,
                {"bitwise": 0.5, "tolerance": 0.3}.get(evidence.reproduced, 0.0),
            ),
            title=f"probe {bad.label!r} saw {'NaN' if bad.maximum != bad.maximum else '+inf'}",
            explanation=f"{bad.dtype} of shape {list(bad.shape)}."
            + (" Loss and gradients of the step are finite." if finite else ""),
            culprit=Culprit(kind="op", location=bad.location),
            phase="forward",
            step=evidence.trip.step,
            effects=effects(evidence),
        ),
    )


RULES = (
    Rule(
        code="ND901",
        name="not-reproduced",
        severity="critical",
        summary="the failing step was healthy when it was run again",
        check=_not_reproduced,
        doc="""\
## What it checks
A step whose loss or gradients were non-finite, while its replay from the same weights, batch and random state was
not, or gave no op to blame.

## Why it matters
No line can be named honestly. State outside the model (a global counter, a file), a nondeterministic kernel, a
compiled region that differs from eager, or faulty hardware are what is left.

## Fix
Run again with `torch.use_deterministic_algorithms(True)`; try without torch.compile; keep all state in the model.

## Options
None.

## See also
ND302 masked-branch-gradient
""",
    ),
    Rule(
        code="ND904",
        name="nonfinite-probe",
        severity="critical",
        summary="a spot marked with nanodoc.probe saw NaN or +inf",
        check=_nonfinite_probe,
        doc="""\
## What it checks
Every tensor given to `nanodoc.probe(tensor, "label")` while nanodoc runs the training. NaN or +inf ends the run, also where the loss
stays finite, and the step is examined from that spot backwards: where the op that made the value is known, that is the finding, and
the probe is listed among its effects.

## Why it matters
The spots that their author marked are those that must not go wrong, and a NaN that is masked out of the loss may come back.

## Example
    h = nanodoc.probe(self.norm(h), "after layer_norm")

## Fix
As for the op that is named.

## Options
None. −inf alone is what masks are made of and is no finding; `--frames` shows it.

## See also
ND203 low-precision-overflow, ND201 domain-error
""",
    ),
)
