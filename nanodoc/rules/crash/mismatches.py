"""ND705, ND706, ND707: tensors that do not go together by shape, device or dtype, with the lines
that made them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.crash import CrashFacts, FailedCall, GivenFacts, StateFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.rules.crash.failures import failure_claim
from nanodoc.rules.crash.mismatch_docs import DEVICE_DOC, DTYPE_DOC, SHAPE_DOC

_DEVICE = re.compile(
    r"[Ee]xpected all tensors to be on the same device|is not on the expected device|Cannot copy "
    r"out of meta tensor|different from other tensors on|Input and (?:hidden|parameter) tensors "
    r"are not at the same device|should be on the same device|must be on the same device"
    r"|tensor\(s\) on .* but found|is on \w+(?::\d+)?, but (?:expected|found)|Unhandled FakeTensor "
    r"Device"
)
_DTYPE = re.compile(
    r"must have the same dtype|to have the same dtype|[Ee]xpected scalar type|expected target dtype"
    r"|should be the same$|not implemented for \'|result type .* can\'t be cast|Found dtype"
    r"|[Ee]xpected floating point type|to have one of the following scalar types|dtypes? match"
    r"|[Ee]xpected dtype|used as indices must be|must be floating point|must match the (?:source"
    r"|self) dtype|Input type \(|expected (?:Float|Double|Half|Long|Int) but|Only Tensors of "
    r"floating point|dtype of input|[Cc]ould not infer dtype|must be (?:a )?(?:Long|Int|Float|Half"
    r"|Double)|Expected object of (?:scalar )?type"
)
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


def _from_torch(failure: Failure, evidence: Evidence) -> bool:
    """A function of torch's raised it: one that the step's calls show, one in a file of torch's, or
    one in C, which raise RuntimeErrors."""
    if not failure.raised_by_torch or failure.phase in ("setup", "data"):
        return False
    called = evidence.crash is not None and evidence.crash.call is not None
    return (
        called
        or (bool(failure.origin) and failure.type in ("RuntimeError", "ValueError", "IndexError"))
        or failure.type == "RuntimeError"
    )


def _shape_mismatch(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not _from_torch(failure, evidence) or not _SHAPE.search(failure.message):
        return
    if _DEVICE.search(failure.message) or _DTYPE.search(failure.message):
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
    yield _claim(rule, evidence, failure, call, said, fixes, lambda one: f"{list(one.shape)}")


def _dtype_mismatch(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if (
        failure is None
        or not _from_torch(failure, evidence)
        or not _DTYPE.search(failure.message)
        or _DEVICE.search(failure.message)
    ):
        return
    call = evidence.crash.call if evidence.crash is not None else None
    fixes = [*_dtype_fixes(call, failure)] if call is not None else []
    yield _claim(
        rule, evidence, failure, call, "", fixes, lambda one: f"{one.dtype} {list(one.shape)}"
    )


def _device_mismatch(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if (
        failure is None
        or not failure.raised_by_torch
        or failure.type not in ("RuntimeError", "NotImplementedError")
        or not _DEVICE.search(failure.message)
    ):
        return
    call = evidence.crash.call if evidence.crash is not None else None
    fixes = [*_device_fixes(call)] if call is not None else []
    if "meta" in failure.message and not fixes:
        fixes = [
            Fix(
                title="give it memory before it is used: module.to_empty(device=...) and its own "
                "initialisation, or load its weights with assign=True",
                confidence="likely",
            )
        ]
    yield _claim(
        rule, evidence, failure, call, "", fixes, lambda one: f"{one.device} {list(one.shape)}"
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


def _claim(
    rule: Rule,
    evidence: Evidence,
    failure: Failure,
    call: FailedCall | None,
    said: str,
    fixes: Iterable[Fix],
    shown: object,
) -> Claim:
    extra = []
    if call is not None:
        for number, one in enumerate(call.given):
            extra.append((f"argument {number + 1}", f"{shown(one)}{origin(one)}"))  # type: ignore[operator]  # a function of GivenFacts
        if call.layer_at is not None and failure.frames:
            extra.append(("layer made at", f"{call.layer_at.file}:{call.layer_at.line}"))
        if call.settings:
            extra.append(("also given", call.settings))
    title = failure.first_line
    what = (
        f"{call.name} was given tensors that do not go together. "
        if call is not None and len(call.given) > 1
        else f"{call.name} cannot take this. "
        if call is not None
        else ""
    )
    claim = failure_claim(
        rule,
        evidence,
        title=title,
        explanation=(what + said).strip() or title,
        fixes=fixes,
        specificity=Specificity.FAMILY,
        extra=extra,
    )
    finding = claim.finding
    culprit = finding.culprit
    if call is not None:
        culprit = replace(culprit, op=call.name, module=call.module, module_type=call.module_type)
        # nanodoc itself called the model: the layer's own line is what the user can change
        if not failure.frames:
            made = next((one.made_at for one in call.given if one.made_at), None)
            culprit = replace(culprit, location=call.layer_at or evidence.criterion_site or made)
    sure = confidence(
        0.6, 0.5 if call is not None else 0.0, 0.3 if culprit.location is not None else 0.0
    )
    return replace(claim, finding=replace(finding, culprit=culprit, confidence=sure))


def origin(one: GivenFacts) -> str:
    """ ", made by flatten at train.py:20"."""
    at = f" at {one.made_at.file}:{one.made_at.line}" if one.made_at is not None else ""
    if one.made_by is not None:
        return f", made by {one.made_by}{at}"
    if one.leaf is None:
        return ""
    if one.leaf.startswith("param:"):
        return f", parameter {one.leaf.removeprefix('param:')}" + (
            f" of the layer made{at}" if at else ""
        )
    if one.leaf.startswith("unregistered:"):
        return (
            f", a parameter in {one.leaf.removeprefix('unregistered:')}, which the model has not "
            "registered"
        )
    return f", {one.leaf.removeprefix('buffer:')}"


def _still_full(crash: CrashFacts, failure: Failure) -> bool:
    """The batch is smaller than the first one, and the first one's size is among the sizes that do
    not fit."""
    size, usual = crash.batch_size, crash.usual_batch_size
    if not size or not usual or size >= usual:
        return False
    given = crash.call.given if crash.call is not None else ()
    # weights know nothing of the batch's size
    if any((one.leaf or "").startswith("param:") for one in given):
        return False
    shapes = {length for one in given for length in one.shape}
    return usual in shapes or str(usual) in re.findall(r"\d+", failure.message)


def _shape_fixes(call: FailedCall, crash: CrashFacts, *, full: bool) -> Iterable[Fix]:
    if full:
        yield Fix(
            title="take the batch's size from the tensor (x.shape[0]), begin with a fresh state, or "
            "leave the last batch out: DataLoader(..., drop_last=True)",
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


def _dtype_fixes(call: FailedCall, failure: Failure) -> Iterable[Fix]:
    given = call.given
    if "cross_entropy" in call.name or "nll_loss" in call.name:
        if (
            len(given) > 1
            and given[1].dtype.startswith("float")
            and len(given[1].shape) < len(given[0].shape)
        ):
            yield Fix(title="class labels are whole numbers: target.long()", confidence="likely")
        elif len(given) > 1 and not given[1].dtype.startswith("float"):
            yield Fix(
                title="class labels are int64: target.long(); class probabilities are floating "
                "point: target.float()",
                confidence="likely",
            )
        return
    if "embedding" in call.name:
        yield Fix(title="ids are whole numbers: ids.long()", confidence="likely")
        return
    floats = [one for one in given if one.dtype.startswith(("float", "bfloat"))]
    weights = next((one for one in given if (one.leaf or "").startswith("param:")), None)
    odd = next(
        (
            one
            for one in given
            if weights is not None
            and one.dtype != weights.dtype
            and not (one.leaf or "").startswith("param:")
        ),
        None,
    )
    if weights is not None and odd is not None:
        source = odd.leaf or (f"the output of {odd.made_by}" if odd.made_by else "the input")
        yield Fix(
            title=f"{source} is {odd.dtype}, the weights are {weights.dtype}: give it "
            f".to(torch.{weights.dtype})",
            confidence="likely",
        )
    elif (
        len(floats) > 1
        and (odd := next((one for one in floats[1:] if one.dtype != floats[0].dtype), None))
        is not None
    ):
        source = odd.leaf or (
            f"the output of {odd.made_by}" if odd.made_by else f"argument {given.index(odd) + 1}"
        )
        yield Fix(
            title=f"{source} is {odd.dtype}, the first {floats[0].dtype}: "
            f".to(torch.{floats[0].dtype})",
            confidence="likely",
        )
    elif len(given) > 1 and given[0].dtype != given[1].dtype:
        whole = next(
            (one for one in given[:2] if not one.dtype.startswith(("float", "bfloat"))), given[1]
        )
        other = given[0] if whole is given[1] else given[1]
        yield Fix(
            title=f"{whole.leaf or 'the ' + whole.dtype + ' tensor'} is {whole.dtype}, the other "
            f"{other.dtype}: .to(torch.{other.dtype})",
            confidence="likely",
        )


def _device_fixes(call: FailedCall) -> Iterable[Fix]:
    devices = [one.device for one in call.given]
    if len(set(devices)) < 2:
        return
    weights = next(
        (
            one
            for one in call.given
            if (one.leaf or "").startswith(("param:", "buffer:")) and one.device != "meta"
        ),
        None,
    )
    for one in call.given:
        made = f" made by {one.made_by}" if one.made_by else ""
        if one.device == "meta":
            yield Fix(
                title=f"the tensor{made or ' ' + (one.leaf or '')} has no memory (meta): make it on "
                "a device, or give its module memory with to_empty() and load it",
                confidence="likely",
            )
            return
        if weights is not None and one.device != weights.device:
            yield Fix(
                title=f"the tensor{made} is on {one.device}, the weights are on {weights.device}: "
                "make it there (device=x.device), or register it as a buffer so that it "
                "moves with the model",
                confidence="likely",
            )
            return


RULES = (
    Rule(
        code="ND705",
        name="shape-mismatch",
        severity="critical",
        summary="tensors whose shapes do not go together",
        check=_shape_mismatch,
        doc=SHAPE_DOC,
    ),
    Rule(
        code="ND706",
        name="device-mismatch",
        severity="critical",
        summary="tensors that live on different devices",
        check=_device_mismatch,
        doc=DEVICE_DOC,
    ),
    Rule(
        code="ND707",
        name="dtype-mismatch",
        severity="critical",
        summary="tensors whose dtypes do not go together",
        check=_dtype_mismatch,
        doc=DTYPE_DOC,
    ),
)
