"""## What it checks
A loss or a distribution refused values outside of its range: binary_cross_entropy, bernoulli,
multinomial, a parameter of `torch.distributions`. The step is run once more with its ops recorded,
and from the refused value back to the op whose result is out of the range while what it was made of
is not. That line is to blame; the line that raised is given as evidence.

## Why it matters
torch's message gives neither the line nor the values of the tensor. Raw outputs of a model, a
rescaled probability, and an image of 0 to 255 as the target raise the same error.

## Example
    F.binary_cross_entropy(model(x), target)     # no sigmoid

## Fix
    F.binary_cross_entropy_with_logits(model(x), target)

## See also
ND627 not-log-probabilities, ND201 domain-error
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import GivenFacts, LeftRange
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.refusals import refused
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.crash.left_range import left_in_step, limits, looked_up, told_of
from nanodoc.rules.crash.mismatch_claims import from_torch, origin

_MESSAGE = re.compile(r"all elements of (input|target) should be between 0 and 1")
_PIXELS = 255.0
_FEW_CLASSES = 16.0


@rule(
    "ND713",
    "probability-range",
    "critical",
    "values that a loss or a distribution refuses",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not from_torch(failure, evidence):
        return
    found = _MESSAGE.search(failure.message)
    if found is None:
        if (left := left_in_step(evidence)) is not None and refused(failure) is not None:
            yield _of_other(rule, evidence, failure, left)
        return
    side = found[1]
    call = evidence.crash.call if evidence.crash is not None else None
    given = call.given[side == "target"] if call is not None and len(call.given) > 1 else None
    span = _span(given)
    claim = failure_claim(
        rule,
        evidence,
        title=f"binary_cross_entropy takes probabilities; its {side} is {span}",
        explanation=f"{_who(side, given)} {_why(side, given)}",
        fixes=_fixes(side, given),
        # what made the NaN comes first, where that is known
        specificity=Specificity.FALLBACK
        if given is not None and given.nonfinite
        else Specificity.SPECIAL,
        extra=[(f"the {side}", f"{span}{origin(given)}")] if given is not None else [],
    )
    # what made the values is to blame, where that is a line of the user's
    left = left_in_step(evidence)
    if left is not None and left.op.site is not None:
        yield _at_birth(claim, left)
        return
    at = given.made_at if given is not None and side == "input" else None
    if at is not None and given is not None and given.module is None:
        culprit = replace(claim.finding.culprit, location=at)
        claim = replace(claim, finding=replace(claim.finding, culprit=culprit))
    yield claim


def _of_other(rule: Rule, evidence: Evidence, failure: Failure, left: LeftRange) -> Claim:
    """Of any other function than binary_cross_entropy."""
    out = left.op.outputs[0]
    function = failure.torch_function or "a distribution"
    claim = failure_claim(
        rule,
        evidence,
        title=f"values from {out.minimum:.7g} to {out.maximum:.7g} where "
        f"{function} takes {limits(left)}",
        explanation="A value out of that range was refused.",
        fixes=[Fix(title=f"keep the values in the range {limits(left)}", confidence="likely")],
        specificity=Specificity.SPECIAL,
    )
    return _at_birth(claim, left)


def _at_birth(claim: Claim, left: LeftRange) -> Claim:
    """Blames the op where the values left the range."""
    finding = claim.finding
    culprit = replace(finding.culprit, op=left.op.short, location=left.op.site)
    evidence = (*looked_up(left, finding.culprit.location), *finding.evidence)
    told = f"{finding.explanation} {told_of(left)}"
    return replace(
        claim, finding=replace(finding, culprit=culprit, explanation=told, evidence=evidence)
    )


def _span(given: GivenFacts | None) -> str:
    if given is None or given.minimum is None or given.maximum is None:
        return "not between 0 and 1"
    wrong = f", and {given.nonfinite} are NaN or inf" if given.nonfinite else ""
    return f"from {given.minimum:.7g} to {given.maximum:.7g}{wrong}"


def _who(side: str, given: GivenFacts | None) -> str:
    return f"The {side}{origin(given) if given is not None else ''} has values outside 0 to 1."


def _why(side: str, given: GivenFacts | None) -> str:
    largest = given.maximum if given is not None and given.maximum is not None else 0.0
    if given is not None and given.nonfinite:
        return "NaN is outside, too: fix what makes the NaN first."
    if side == "target":
        return (
            "Values up to 255 come from an image that was not divided by 255."
            if _FEW_CLASSES < largest <= _PIXELS
            else "Targets must be probabilities, too; for labels of several classes use "
            "cross_entropy."
        )
    inside = given is not None and (given.minimum or 0.0) >= 0 and largest < 2
    return (
        "A probability was changed after it was computed."
        if inside
        else "The raw outputs (logits) of a model are not probabilities."
    )


def _fixes(side: str, given: GivenFacts | None) -> list[Fix]:
    if given is not None and given.nonfinite:
        return [Fix(title="fix what makes the NaN first", confidence="maybe")]
    if side == "target":
        largest = given.maximum if given is not None else None
        title = (
            "divide the targets by 255 where they are made"
            if largest is not None and _FEW_CLASSES < largest <= _PIXELS
            else "scale the targets to 0 … 1, or give class labels to cross_entropy"
        )
        return [Fix(title=title, confidence="likely")]
    return [
        Fix(
            title="give the raw outputs to binary_cross_entropy_with_logits, without a sigmoid; "
            "do not change probabilities afterwards",
            confidence="likely",
        )
    ]
