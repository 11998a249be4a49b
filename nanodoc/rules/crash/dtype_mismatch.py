"""## What it checks
An exception about dtypes. The step is run once more with its calls recorded: the dtype of each
tensor given to the function that raised, and the line that made it.

## Why it matters
NumPy makes float64, labels arrive as float32, half-precision weights meet float32 inputs: the
message does not say where each of them was made.

## Example
    RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float

## Fix
    torch.from_numpy(array).float()

## See also
ND406 half-parameters
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import ChangeInput
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import FailedCall, GivenFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.rules.crash.mismatch_claims import DEVICE, DTYPE, Mismatch, from_torch, mismatch_claim


@rule(
    "ND707",
    "dtype-mismatch",
    "critical",
    "tensors whose dtypes do not match",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if (
        failure is None
        or not from_torch(failure, evidence)
        or not DTYPE.search(failure.message)
        or DEVICE.search(failure.message)
    ):
        return
    call = evidence.crash.call if evidence.crash is not None else None
    where = failure.frames[-1] if failure.frames else None
    fixes = [*_dtype_fixes(call, where)] if call is not None else []
    yield mismatch_claim(
        rule,
        evidence,
        failure,
        call,
        Mismatch(
            property="dtypes",
            shown=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
            fixes=tuple(fixes),
            kind=lambda tensor: tensor.dtype,
        ),
    )


def _dtype_fixes(call: FailedCall, where: SourceSpan | None) -> Iterable[Fix]:
    """What to change in the arguments of the call that raised."""
    if "cross_entropy" in call.name or "nll_loss" in call.name:
        yield from _label_fixes(call, where)
    elif "embedding" in call.name:
        remedy = ChangeInput(location=where, op=call.name, position=0, method="long")
        title = "ids are integers: ids.long()"
        yield Fix(title=title, confidence="likely", remedy=remedy)
    else:
        yield from _conversions(call, where)


def _label_fixes(call: FailedCall, where: SourceSpan | None) -> Iterable[Fix]:
    """For a classification's loss, whose second argument are the targets."""
    given = call.given
    if (
        len(given) > 1
        and given[1].dtype.startswith("float")
        and len(given[1].shape) < len(given[0].shape)
    ):
        yield Fix(
            title="class labels are integers: target.long()",
            confidence="likely",
            remedy=ChangeInput(location=where, op=call.name, position=1, method="long"),
        )
    elif len(given) > 1 and not given[1].dtype.startswith("float"):
        yield Fix(
            title="class labels are int64: target.long(); class probabilities are floating "
            "point: target.float()",
            confidence="likely",
        )


def _conversions(call: FailedCall, where: SourceSpan | None) -> Iterable[Fix]:
    """The argument that is unlike the weights, unlike the first floating-point one, or no
    floating-point one, and the dtype to give it."""
    given = call.given
    floats = [tensor for tensor in given if _is_floating(tensor)]
    weights = next((tensor for tensor in given if _is_parameter(tensor)), None)
    unlike = (
        tensor
        for tensor in given
        if weights is not None and tensor.dtype != weights.dtype and not _is_parameter(tensor)
    )
    odd = next(unlike, None)
    if weights is not None and odd is not None:
        source = odd.leaf or (f"the output of {odd.made_by}" if odd.made_by else "the input")
        title = f"{source} is {odd.dtype}, the weights are {weights.dtype}: convert it with "
        yield _conversion(call, where, odd, weights.dtype, title)
    elif (
        len(floats) > 1
        and (odd := next((later for later in floats[1:] if later.dtype != floats[0].dtype), None))
        is not None
    ):
        source = odd.leaf or (
            f"the output of {odd.made_by}" if odd.made_by else f"argument {given.index(odd) + 1}"
        )
        title = f"{source} is {odd.dtype}, the first {floats[0].dtype}: "
        yield _conversion(call, where, odd, floats[0].dtype, title)
    elif len(given) > 1 and given[0].dtype != given[1].dtype:
        whole = next((tensor for tensor in given[:2] if not _is_floating(tensor)), given[1])
        other = given[0] if whole is given[1] else given[1]
        title = (
            f"{whole.leaf or 'the ' + whole.dtype + ' tensor'} is {whole.dtype}, the other "
            f"{other.dtype}: "
        )
        yield _conversion(call, where, whole, other.dtype, title)


def _conversion(
    call: FailedCall, where: SourceSpan | None, odd: GivenFacts, dtype: str, title: str
) -> Fix:
    """The fix that gives one of the arguments another dtype."""
    position = next(i for i, tensor in enumerate(call.given) if tensor is odd)
    remedy = ChangeInput(location=where, op=call.name, position=position, method="float")
    return Fix(
        title=f"{title}.to(torch.{dtype})",
        confidence="likely",
        remedy=remedy if dtype == "float32" else None,
    )


def _is_floating(tensor: GivenFacts) -> bool:
    return tensor.dtype.startswith(("float", "bfloat"))


def _is_parameter(tensor: GivenFacts) -> bool:
    return tensor.parameter is not None
