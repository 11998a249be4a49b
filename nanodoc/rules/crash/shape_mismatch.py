"""## What it checks
A torch exception about sizes. The step is run once more with its calls recorded: the function that
raised, the shape of each tensor it was given, and the line that made it. The finding also says
whether this batch is smaller than the first one.

## Why it matters
The message gives two numbers and no tensor; the line that raises is often not the one that made the
wrong shape.

## Example
    RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 400x10)

## Fix
    self.fc = nn.Linear(512, 10)

## See also
ND111 broadcast-loss, ND104 ragged-batch
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.remedy import ChangeInput
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import CrashFacts, FailedCall, StateFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.crash.failure_claims import failure_claim, known
from nanodoc.rules.crash.mismatch_claims import (
    DEVICE,
    DTYPE,
    Mismatch,
    from_torch,
    mismatch_claim,
)
from nanodoc.vocabulary.calls import RESHAPING

_SHAPE = re.compile(
    r"shapes? cannot be multiplied|must match the size of tensor|is invalid for input of size"
    r"|[Ss]izes of tensors must match|to match target batch_size|\bchannels\b|normalized_shape"
    r"|[Tt]arget size|expanded size of the tensor|equal size|Expected \d+D|input_size|should "
    r"contain \d+ elements|Dimension out of range|classes|number of dimensions|spatial (?:size"
    r"|targets)|split_with_sizes|split_size|shape of the mask|shape mismatch|not broadcastable"
    r"|cannot be broadcast|could not be broadcast|must be a matrix|size mismatch|attn_mask"
    r"|embedding dimension|[Kk]ernel size|Output size is too small|Expected size for first two "
    r"dimensions|tensors? expected|multi-target not supported|einsum\(\)|Expected hidden|expected "
    r"hidden|too many indices|unbatched|[Ee]xpected batch|is not divisible by|must be divisible"
    r"|same number of dimensions|non-singleton|inconsistent tensor size|Expected (?:input|target)"
    r"|more than one (?:element|value) per|size \d+ (?:is different from|vs)|number of (?:sizes"
    r"|dims)"
)


@rule(
    "ND705",
    "shape-mismatch",
    "critical",
    "tensors whose shapes do not match",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not from_torch(failure, evidence) or not _SHAPE.search(failure.message):
        return
    if DEVICE.search(failure.message) or DTYPE.search(failure.message):
        return
    crash = evidence.crash or CrashFacts()
    call = crash.call
    if crash.state is not None:
        yield _state_of_others(rule, evidence, crash.state)
        return
    if call is None and not failure.frames:
        return
    smaller = _still_full(crash, failure)
    where = failure.frames[-1] if failure.frames else None
    fixes = [*_shape_fixes(call, crash, where, full=smaller)] if call is not None else []
    said = (
        f"This batch has {crash.batch_size} samples, the first one had {crash.usual_batch_size}, "
        f"and {crash.usual_batch_size} is still in use: a number written into the code, "
        "or a tensor kept from the batch before."
        if smaller
        else ""
    )
    seen = Mismatch(
        property="shapes",
        shown=lambda argument: f"{list(argument.shape)}",
        fixes=tuple(fixes),
        said=said,
        cause="" if said else _cause(call, failure) if call is not None else None,
    )
    yield mismatch_claim(rule, evidence, failure, call, seen)


def _cause(call: FailedCall, failure: Failure) -> str | None:
    """The usual cause for what a linear layer was given; None where the message's own is as
    good."""
    given, told = call.given, known(failure)
    if call.name != "linear" or len(given) < 2 or len(given[1].shape) != 2 or not given[0].shape:
        return None
    shape, expected = given[0].shape, given[1].shape[1]
    if shape[-1] == expected:  # something else does not fit: the bias
        return None
    if len(shape) > 2 and math.prod(shape[1:]) == expected:
        return "the input is not flattened; a linear layer reads only the last dimension"
    if len(shape) > 2 and expected in shape[1:-1]:
        return "the dimensions are in a different order; a linear layer reads the last one"
    if given[0].made_by in RESHAPING:
        return told.causes[0] if told is not None else None
    source = f"the output of {given[0].made_by}" if given[0].made_by else "the input"
    return (
        f"in_features ({expected}) was set for a different input; {source} has {shape[-1]} features"
    )


def _state_of_others(rule: Rule, evidence: Evidence, state: StateFacts) -> Claim:
    sites = evidence.optimizer_sites
    where = sites[state.optimizer] if state.optimizer < len(sites) else None
    claim = failure_claim(
        rule,
        evidence,
        specificity=Specificity.SPECIAL,
        title=f"the optimizer's {state.key} of {state.parameter} is {list(state.shape)}, and the "
        f"parameter is {list(state.wanted)}",
        explanation=f"{state.odd} of {state.count} parameters have state of a different shape. "
        "load_state_dict matches an optimizer's state by position, not by name: it was "
        "saved for these parameters in a different order, or for other parameters.",
        fixes=[
            Fix(
                title="give the optimizer its parameters in the order in which they were saved "
                "(same groups, same order), or start with fresh state",
                confidence="likely",
            )
        ],
    )
    culprit = Culprit(
        kind="optimizer",
        parameter=state.parameter,
        location=where or claim.finding.culprit.location,
    )
    sure = confidence(0.7, 0.5 if where is not None else 0.2)
    return replace(claim, finding=replace(claim.finding, culprit=culprit, confidence=sure))


def _still_full(crash: CrashFacts, failure: Failure) -> bool:
    """The batch is smaller than the first one, and the first one's size is among the sizes that do
    not fit."""
    size, usual = crash.batch_size, crash.usual_batch_size
    if not size or not usual or size >= usual:
        return False
    given = crash.call.given if crash.call is not None else ()
    # weights know nothing of the batch's size
    if any(argument.parameter for argument in given):
        return False
    shapes = {length for argument in given for length in argument.shape}
    return usual in shapes or str(usual) in re.findall(r"\d+", failure.message)


def _shape_fixes(
    call: FailedCall, crash: CrashFacts, where: SourceSpan | None, *, full: bool
) -> Iterable[Fix]:
    change = partial(ChangeInput, location=where, op=call.name, position=0)
    if full:
        yield Fix(
            title="read the batch size from the tensor (x.shape[0]), start with a fresh state, "
            "or drop the last batch: DataLoader(..., drop_last=True)",
            confidence="likely",
        )
    given = call.given
    if call.name == "linear" and len(given) >= 2 and len(given[1].shape) == 2 and given[0].shape:
        outs, ins = given[1].shape
        shape = given[0].shape
        if shape[-1] == ins:
            return
        if len(shape) > 2 and math.prod(shape[1:]) == ins:
            yield Fix(
                title=f"flatten the input first: x.flatten(1) is [{shape[0]}, {ins}]",
                confidence="likely",
                remedy=change(method="flatten", arguments=(1,)),
            )
        elif ins in shape[1:-1]:
            at = shape.index(ins, 1)
            yield Fix(
                title=f"the {ins} features are in dimension {at}: x.movedim({at}, -1)",
                confidence="likely",
                remedy=change(method="movedim", arguments=(at, -1)),
            )
        else:
            yield Fix(
                title=f"nn.Linear({shape[-1]}, {outs}), or an input of {ins} features",
                confidence="likely",
            )
    if call.name.startswith("conv") and len(given) >= 2 and len(given[1].shape) >= 3:
        channels, shape = given[1].shape[1], given[0].shape
        spatial = len(given[1].shape) - 2
        if len(shape) == spatial + 2 and shape[-1] == channels and shape[1] != channels:
            order = (0, spatial + 1, *range(1, spatial + 1))
            yield Fix(
                title="the channels come last here, and conv layers expect them in dimension 1: "
                f"x.permute({', '.join(map(str, order))})",
                confidence="likely",
                remedy=change(method="permute", arguments=order),
            )
        elif len(shape) == spatial + 2 and shape[1] != channels:
            yield Fix(
                title=f"in_channels={shape[1]} for this input, or an input of {channels} channels",
                confidence="likely",
            )
        elif len(shape) == spatial + 1:
            yield Fix(
                title="the batch or channel dimension is missing: x.unsqueeze(1)",
                confidence="likely",
                remedy=change(method="unsqueeze", arguments=(1,)),
            )
