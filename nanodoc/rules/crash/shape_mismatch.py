"""## What it checks
An exception of torch's about sizes. The step is run once more with its calls written down: the
function that raised, the shape of each tensor it was given, and the line that made it. Said too:
whether this batch is smaller than the first.

## Why it matters
The message names two numbers and no tensor; the line that raises is often not the one that made the
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

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import CrashFacts, FailedCall, StateFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.rules.crash.failure_claims import failure_claim
from nanodoc.rules.crash.mismatch_claims import DEVICE, DTYPE, from_torch, mismatch_claim

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
    "tensors whose shapes do not go together",
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
    fixes = [*_shape_fixes(call, crash, full=smaller)] if call is not None else []
    said = (
        f"This batch has {crash.batch_size} samples, the first one had {crash.usual_batch_size}, "
        "and that size is still there: a number written into the code, "
        "or a tensor kept from the batch before. "
        if smaller
        else ""
    )
    yield mismatch_claim(
        rule, evidence, failure, call, said, fixes, lambda argument: f"{list(argument.shape)}"
    )


def _state_of_others(rule: Rule, evidence: Evidence, state: StateFacts) -> Claim:
    sites = evidence.optimizer_sites
    where = sites[state.optimizer] if state.optimizer < len(sites) else None
    claim = failure_claim(
        rule,
        evidence,
        specificity=Specificity.SPECIAL,
        title=f"the optimizer's {state.key} of {state.parameter} is {list(state.shape)}, and the "
        f"parameter {list(state.wanted)}",
        explanation=f"{state.odd} of {state.count} parameters have state of another shape. "
        "load_state_dict matches an optimizer's state by position, not by name: it was "
        "saved for these parameters in another order, or for others.",
        fixes=[
            Fix(
                title="give the optimizer its parameters in the order in which they were saved "
                "(same groups, same sorting), or begin with fresh state",
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


def _shape_fixes(call: FailedCall, crash: CrashFacts, *, full: bool) -> Iterable[Fix]:
    if full:
        yield Fix(
            title="take the batch's size from the tensor (x.shape[0]), begin with a fresh state, "
            "or leave the last batch out: DataLoader(..., drop_last=True)",
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
            )
        elif ins in shape[1:-1]:
            yield Fix(
                title=f"the {ins} features are in dimension {shape.index(ins, 1)}: "
                f"x.movedim({shape.index(ins, 1)}, -1)",
                confidence="likely",
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
            order = ", ".join(map(str, (0, spatial + 1, *range(1, spatial + 1))))
            yield Fix(
                title=f"channels come last here and are wanted first: x.permute({order})",
                confidence="likely",
            )
        elif len(shape) == spatial + 2 and shape[1] != channels:
            yield Fix(
                title=f"in_channels={shape[1]} for this input, or an input of {channels} channels",
                confidence="likely",
            )
        elif len(shape) == spatial + 1:
            yield Fix(
                title="a dimension is missing, of samples or of channels: x.unsqueeze(1)",
                confidence="likely",
            )
