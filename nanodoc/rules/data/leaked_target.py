"""## What it checks
Whether, in every sample of the stored batches (up to eight), all numbers of a target appear at
fixed places of the model's input; an info if they have a different scale (a correlation of 1 up to
rounding). Targets at least half as large as the input, as in an autoencoder, are not checked.

## Why it matters
The model copies what it should predict. The loss is unrealistically good, and the model fails when
the target is not known.

## Example
    window, target = series[i : i + 24], series[i + 23]

## Fix
    window, target = series[i : i + 24], series[i + 24]

## See also
ND117 unshifted-labels, ND118 missing-causal-mask
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import CopyFacts
from nanodoc.rules.data.batch_claims import batch_claim
from nanodoc.rules.learning.claims import calls_of
from nanodoc.vocabulary.calls import SUPERVISED


@rule(
    "ND122",
    "leaked-target",
    "warning",
    "the target is one of the inputs",
    needs=("inspection", "data"),
    preflight="batch",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls, data = calls_of(evidence), evidence.data
    if calls is None or data is None:
        return
    for copy in data.copies:
        if not _is_target(calls, copy.path) or not _is_input(calls, copy.inside, copy.path):
            continue
        first = "[n, " + ", ".join(str(number) for number in copy.places[0]) + "]"
        more = f" and {len(copy.places) - 1} more" if len(copy.places) > 1 else ""
        claim = batch_claim(
            rule,
            evidence,
            copy.path,
            title=f"the target {copy.path} is one of the inputs: {copy.inside}{first}{more}",
            explanation=f"In all {copy.samples} examined samples, sample n's target "
            + (
                f"is the number at {first} of the input."
                if copy.equal
                else f"is an exact linear function of the number at {first} of the input."
            )
            + " The model needs nothing else.",
            # a scaled column may be the task itself, in an exercise
            severity=rule.severity if copy.equal else "info",
            weight=_sure(copy),
            notes=[("samples", copy.samples), ("place in the input", first)],
            fix=f"leave it out of {copy.inside}: windows that end before the target, features "
            "without the target's column",
        )
        yield _at_labels(claim, evidence)
        return


def _at_labels(claim: Claim, evidence: Evidence) -> Claim:
    """Where the target is made, if that is known."""
    labels_at = evidence.inspection.labels_at if evidence.inspection is not None else None
    found = claim.finding
    culprit = replace(found.culprit, location=labels_at or found.culprit.location)
    return replace(claim, finding=replace(found, culprit=culprit))


def _sure(copy: CopyFacts) -> float:
    """More samples, and more numbers of each, agree by chance less."""
    return confidence(0.6, 1 - 16 / (16 + copy.samples), 0.3 if len(copy.places) > 1 else 0.0)


def _is_target(calls: StepCalls, path: str) -> bool:
    """It is what the loss compares with."""
    reaching = calls.reaching_the_loss()
    return any(
        calls.leaf(side, elementwise=True) == path
        for call in calls.calls
        if call.index in reaching and (call.name in SUPERVISED or call.name == "sub")
        if any(side.requires_grad for side in call.arguments[:2])
        for side in call.arguments[:2]
        if not side.requires_grad
    )


def _is_input(calls: StepCalls, path: str, target: str) -> bool:
    """A layer takes it, and none takes the target."""
    taken = {
        calls.leaf(argument, elementwise=True)
        for call in calls.calls
        if call.requires_grad and call.name not in (*SUPERVISED, "sub")
        for argument in call.arguments
    }
    return path in taken and target not in taken
