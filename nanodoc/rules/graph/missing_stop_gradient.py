"""## What it checks
A loss that is nothing but distances or similarities between two sides that one network computes
from the batch, with gradients through both sides: with a few more layers on one side (SimSiam,
BYOL), or with none. The loss has no targets, no negatives and no term for the spread of the
outputs.

## Why it matters
Both sides can collapse to a constant, whatever the input. The loss is then perfect, and the output
says nothing about the input.

## Example
    loss = -F.cosine_similarity(predictor(z1), z2).mean()

## Fix
    loss = -F.cosine_similarity(predictor(z1), z2.detach()).mean()

## See also
ND618 collapsed-output; Chen and He 2021, Exploring simple siamese representation learning, section
4.1
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import ADDITIONS, FACTORS, REDUCTIONS, REGRESSION, RESHAPING, SIZES

_COMPARING = ("cosine_similarity", *REGRESSION)
_OF_A_SIZE = (*SIZES, "sqrt")
_PASSING_ON = (
    *ADDITIONS,
    *FACTORS,
    *REDUCTIONS,
    *RESHAPING,
    *_OF_A_SIZE,
    "neg",
    "squeeze",
    "unsqueeze",
)
_ALIKE = 0.1  # of the largest output: between any two samples, it has come to a constant
_MOST = 64  # calls between the loss and its distances


@rule(
    "ND519",
    "missing-stop-gradient",
    "warning",
    "both sides of a loss without negatives get gradients",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    meetings = _meetings(calls) if calls is not None else []
    sides = [_sides(calls, meeting) for meeting in meetings] if calls is not None else []
    if not sides or any(side is None for side in sides):
        return
    meeting = meetings[-1]
    out = evidence.inspection.output if evidence.inspection is not None else None
    alike = out is not None and out.inputs_differ and out.spread < _ALIKE
    more = max((side for side in sides if side is not None), key=len)
    apart = (
        f", except for {sorted(more)[0]}"
        + (f" and {len(more) - 1} more parameters of one side" if len(more) > 1 else "")
        if more
        else ""
    )
    yield learning_claim(
        rule,
        location_key(meeting.site) or ("stop-gradient",),
        title="both sides of the only loss get gradients, and nothing prevents a constant output",
        explanation=f"{meeting.name} compares two outputs of the same layers{apart}. Gradients "
        "pass through both, and the loss has no targets and no negatives: an output that is "
        "the same for every input makes it perfect.",
        culprit=at_call(meeting, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.65, 0.4 if more else 0.0, 0.5 if alike else 0.0),
        notes=[
            ("distances", len(meetings)),
            ("loss", evidence.losses[-1]),
            ("outputs of a batch differ by", f"{out.spread:.2g} of their size" if out else None),
        ],
        fix="detach() the side that has no predictor",
        standing=WIRED,
    )


def _meetings(calls: StepCalls) -> list[CallFacts]:
    """The calls that the losses are only sums, means and multiples of, each of two sides; empty
    where there is anything else."""
    found: dict[int, CallFacts] = {}
    # with each call whether the size of what it gives is taken on the way to the loss
    waiting, seen = [(calls.calls[index], False) for index in calls.losses], set[int]()
    while waiting:
        call, sized = waiting.pop()
        if call.index in seen:
            continue
        seen.add(call.index)
        if _is_meeting(call, sized=sized):
            found[call.index] = call
            continue
        inner = _inside(calls, call, sized=sized)
        if not inner or len(seen) > _MOST:
            return []
        waiting += [(made, sized or call.name in _OF_A_SIZE) for made in inner]
    return [found[index] for index in sorted(found)]


def _inside(calls: StepCalls, call: CallFacts, *, sized: bool) -> list[CallFacts]:
    """What the call is a sum, a mean or a multiple of; empty where it is something else."""
    learning = [argument for argument in call.arguments if argument.requires_grad]
    others = [argument for argument in call.arguments if not argument.requires_grad]
    if not (call.name in _PASSING_ON or call.view) or any(side.shape for side in others):
        return []
    # a size that is to be another number than zero, as a margin is
    if sized and call.name in ADDITIONS and len(learning) < 2:
        return []
    made = [calls.maker(argument) for argument in learning]
    return [one for one in made if one is not None] if None not in made else []


def _is_meeting(call: CallFacts, *, sized: bool) -> bool:
    """Of two sides that have dimensions, where they are compared: by a loss, as a product, or as
    the size of a difference."""
    sides = call.arguments[:2]
    compares = (
        call.name in _COMPARING
        or (call.name == "mul" and not sized)
        or (call.name == "sub" and sized)
    )
    return compares and len(sides) == 2 and all(len(side.shape) > 1 for side in sides)


def _sides(calls: StepCalls, meeting: CallFacts) -> set[str] | None:
    """The parameters that only one side is computed with, where both learn, and the other one is
    computed with no others; None for any other pair. A difference or a product of two outputs of
    the same layers may be anything, as the residual of an equation is: there a layer more is
    wanted on one side."""
    one, other = meeting.arguments[:2]
    if not (one.requires_grad and other.requires_grad):
        return None
    (first, of_batch), (second, of_batch_too) = _behind(calls, one), _behind(calls, other)
    if not (first and second and of_batch and of_batch_too):
        return None
    # the very same output on both sides: a length, no distance
    if calls.origin(one, elementwise=True) == calls.origin(other, elementwise=True):
        return None
    if not (first.keys() <= second.keys() or second.keys() <= first.keys()):
        return None
    apart = {n: shape for n, shape in (first | second).items() if (n in first) != (n in second)}
    a_layer = any(len(shape) > 1 for shape in apart.values())
    return set(apart) if a_layer or (not apart and meeting.name in _COMPARING) else None


def _behind(calls: StepCalls, side: ArgumentFacts) -> tuple[dict[str, tuple[int, ...]], bool]:
    """(the parameters that a side is computed with, and their shapes; whether it is computed from
    the batch)"""
    _, leaves = calls.behind(side)
    names = {leaf.parameter: leaf.shape for leaf in leaves if leaf.parameter is not None}
    return names, any(leaf.of_batch or leaf.leaf is None for leaf in leaves)
