"""ND705, ND706, ND707: tensors that do not go together by shape, device or dtype, with the lines
that made them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import USUAL_CAUSE, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.crash import FailedCall, GivenFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.rules.crash.failure_claims import at_earlier_call, failure_claim, known, usual_cause

DEVICE = re.compile(
    r"[Ee]xpected all tensors to be on the same device|is not on the expected device|Cannot copy "
    r"out of meta tensor|different from other tensors on|Input and (?:hidden|parameter) tensors "
    r"are not at the same device|should be on the same device|must be on the same device"
    r"|tensor\(s\) on .* but found|is on \w+(?::\d+)?, but (?:expected|found)|Unhandled FakeTensor "
    r"Device"
)


DTYPE = re.compile(
    r"must have the same dtype|to have the same dtype|[Ee]xpected scalar type|expected target dtype"
    r"|should be the same$|not implemented for \'|result type .* can\'t be cast|Found dtype"
    r"|[Ee]xpected floating point type|to have one of the following scalar types|dtypes? match"
    r"|[Ee]xpected dtype|used as indices must be|must be floating point|must match the (?:source"
    r"|self) dtype|Input type \(|expected (?:Float|Double|Half|Long|Int) but|Only Tensors of "
    r"floating point|dtype of input|[Cc]ould not infer dtype|must be (?:a )?(?:Long|Int|Float|Half"
    r"|Double)|Expected object of (?:scalar )?type"
)


def from_torch(failure: Failure, evidence: Evidence) -> bool:
    """A function of torch's raised it: one that the step's calls show, one in a file of torch's, or
    one in C, which raise RuntimeErrors."""
    if not failure.raised_by_torch or failure.phase in ("setup", "data", "script"):
        return False
    called = evidence.crash is not None and evidence.crash.call is not None
    return (
        called
        or (bool(failure.origin) and failure.type in ("RuntimeError", "ValueError", "IndexError"))
        or failure.type == "RuntimeError"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """What a rule says of tensors that do not go together."""

    property: str
    """In which they differ: "shapes"."""
    shown: Callable[[GivenFacts], str]
    """A tensor with this property."""
    fixes: tuple[Fix, ...]
    kind: Callable[[GivenFacts], str] | None = None
    """What has to be the same for all of them, where it does."""
    said: str = ""
    """Why, where the rule knows it."""
    cause: str | None = None
    """The usual cause for these tensors; "" where none is to be given, None for that of the
    message."""


def mismatch_claim(
    rule: Rule, evidence: Evidence, failure: Failure, call: FailedCall | None, seen: Mismatch
) -> Claim:
    told = known(failure)
    usual = usual_cause(told, failure) if seen.cause is None else [(USUAL_CAUSE, seen.cause)]
    extra = [(label, text) for label, text in usual if text]
    if call is not None:
        for number, argument in enumerate(call.given):
            extra.append((f"argument {number + 1}", f"{seen.shown(argument)}{origin(argument)}"))
        if call.layer_at is not None and failure.frames:
            extra.append(("layer made at", call.layer_at.place))
        if call.settings:
            extra.append(("also given", call.settings))
    title = failure.first_line
    what = _given(call, seen) if call is not None else ""
    claim = failure_claim(
        rule,
        evidence,
        title=title,
        explanation=f"{what} {seen.said}".strip() or (told.means if told is not None else title),
        fixes=seen.fixes,
        specificity=Specificity.FAMILY,
        extra=extra,
    )
    finding = claim.finding
    culprit = finding.culprit
    if call is not None:
        culprit = replace(culprit, op=call.name, module=call.module, module_type=call.module_type)
        # nanodoc itself called the model: the layer's own line is what the user can change
        if not failure.frames:
            made = next((argument.made_at for argument in call.given if argument.made_at), None)
            culprit = replace(culprit, location=call.layer_at or evidence.criterion_site or made)
    sure = confidence(
        0.6, 0.5 if call is not None else 0.0, 0.3 if culprit.location is not None else 0.0
    )
    found = replace(finding, culprit=culprit, confidence=sure)
    return at_earlier_call(replace(claim, finding=found), evidence)


def _given(call: FailedCall, seen: Mismatch) -> str:
    """The tensors that differ, and where they come from."""
    shown = [f"{seen.shown(argument)}{origin(argument)}" for argument in call.given]
    if not shown:
        return f"{call.name} does not accept these arguments."
    if len(shown) == 1:
        return f"{call.name} was given {shown[0]}."
    pair = _pair(call.given, seen)
    if pair is None:  # which of them is wrong is not known
        return f"{call.name} was given {'; '.join(shown)}."
    first, other = pair
    comma = "," if "," in origin(call.given[first]) else ""
    return (
        f"{call.name} was given {shown[first]}{comma} and {shown[other]}: the {seen.property} do "
        "not match."
    )


def _pair(given: Sequence[GivenFacts], seen: Mismatch) -> tuple[int, int] | None:
    """The first two tensors that differ; of dtypes, integers beside two floats only index. None
    where no two differ, or any of more than two may be the wrong one."""
    if seen.kind is None:
        return (0, 1) if len(given) == 2 and seen.shown(given[0]) != seen.shown(given[1]) else None
    kinds = [seen.kind(argument) for argument in given]
    floats = [i for i, kind in enumerate(kinds) if "float" in kind]
    for among in (floats, range(len(kinds))):
        for i in among:
            if kinds[i] != kinds[among[0]]:
                return among[0], i
    return None


def origin(given: GivenFacts) -> str:
    """ ", made by flatten at train.py:20"."""
    at = f" at {given.made_at.place}" if given.made_at is not None else ""
    if given.made_by is not None:
        return f", made by {given.made_by}{at}"
    if given.leaf is None:
        return ""
    if given.leaf.startswith("param:"):
        return f", parameter {given.leaf.removeprefix('param:')}" + (
            f" of the layer made{at}" if at else ""
        )
    if given.leaf.startswith("unregistered:"):
        return (
            f", a parameter in {given.leaf.removeprefix('unregistered:')}, which the model has not "
            "registered"
        )
    return f", {given.leaf.removeprefix('buffer:')}"
