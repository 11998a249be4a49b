"""## What it checks
An exception about dtypes. The step is run once more with its calls written down: the dtype of each
tensor given to the function that raised, and the line that made it.

## Why it matters
NumPy makes float64, labels arrive as float32, half weights meet float32 inputs: the message does
not say which of them came from where.

## Example
    RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float

## Fix
    torch.from_numpy(array).float()

## See also
ND406 half-parameters
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.crash import FailedCall, GivenFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.mismatch_claims import DEVICE, DTYPE, from_torch, mismatch_claim


@rule(
    "ND707",
    "dtype-mismatch",
    "critical",
    "tensors whose dtypes do not go together",
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
    fixes = [*_dtype_fixes(call)] if call is not None else []
    yield mismatch_claim(
        rule,
        evidence,
        failure,
        call,
        "",
        fixes,
        lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
    )


def _dtype_fixes(call: FailedCall) -> Iterable[Fix]:
    """What to change in the arguments of the call that raised."""
    if "cross_entropy" in call.name or "nll_loss" in call.name:
        yield from _label_fixes(call.given)
    elif "embedding" in call.name:
        yield Fix(title="ids are whole numbers: ids.long()", confidence="likely")
    else:
        yield from _conversions(call.given)


def _label_fixes(given: Sequence[GivenFacts]) -> Iterable[Fix]:
    """For a classification's loss, whose second argument are the targets."""
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


def _conversions(given: Sequence[GivenFacts]) -> Iterable[Fix]:
    """The argument that is unlike the weights, unlike the first floating-point one, or no
    floating-point one, and the dtype to give it."""
    floats = [tensor for tensor in given if tensor.dtype.startswith(("float", "bfloat"))]
    weights = next((tensor for tensor in given if _is_parameter(tensor)), None)
    odd = next(
        (
            tensor
            for tensor in given
            if weights is not None and tensor.dtype != weights.dtype and not _is_parameter(tensor)
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
        and (odd := next((later for later in floats[1:] if later.dtype != floats[0].dtype), None))
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
            (tensor for tensor in given[:2] if not tensor.dtype.startswith(("float", "bfloat"))),
            given[1],
        )
        other = given[0] if whole is given[1] else given[1]
        yield Fix(
            title=f"{whole.leaf or 'the ' + whole.dtype + ' tensor'} is {whole.dtype}, the other "
            f"{other.dtype}: .to(torch.{other.dtype})",
            confidence="likely",
        )


def _is_parameter(tensor: GivenFacts) -> bool:
    return tensor.parameter is not None
