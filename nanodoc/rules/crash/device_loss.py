"""ND701 and ND702: errors of a GPU that say neither what nor where, before a look at the same step
elsewhere has told."""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.cuda_errors import cublas_status, names_cuda
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import device_is_lost
from nanodoc.rules.crash.failures import failure_claim


def _device_side_assert(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not device_is_lost(failure) or cublas_status(failure.message) is not None:
        return
    ways = ["CUDA_LAUNCH_BLOCKING=1 names the call"] if names_cuda(failure.message) else []
    spread = evidence.crash is not None and evidence.crash.spread
    ways.append(
        "check ids and labels before they are looked up"
        if spread
        else "on the CPU the same step names the index: --device cpu"
    )
    yield failure_claim(
        rule,
        evidence,
        title=failure.first_line,
        specificity=Specificity.FAMILY,
        explanation="Kernels run later than they are called: the line is the one that noticed, not the "
        "one that is wrong. An index or a label out of range is the usual cause.",
        fixes=[Fix(title="; ".join(ways), confidence="likely")],
    )


def _cublas_failure(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    status = cublas_status(failure.message) if failure is not None else None
    if failure is None or status is None:
        return
    alloc = status == "CUBLAS_STATUS_ALLOC_FAILED"
    yield failure_claim(
        rule,
        evidence,
        title=f"cuBLAS gave {status}",
        specificity=Specificity.FAMILY,
        explanation="An index out of range in an earlier kernel leaves the device in a state in which "
        "cuBLAS can't start; else memory is full."
        if alloc
        else "An earlier kernel left the device broken, or cuBLAS was given what it does not take.",
        fixes=[
            Fix(
                title="CUDA_LAUNCH_BLOCKING=1 names the first kernel that fails; on the CPU the "
                "same step names an index: --device cpu",
                confidence="likely",
            )
        ],
    )


RULES = (
    Rule(
        code="ND701",
        name="device-side-assert",
        severity="critical",
        summary="a kernel's assertion or an illegal address, after which the device is lost",
        check=_device_side_assert,
        doc="""\
## What it checks
An exception after which the device answers this process no more: CUDA's "device-side assert triggered" and its kin, and torch's
AcceleratorError of any device. The failing batch, which never left the host, is run on the CPU in a fresh process: an
index or label out of range is then named with its value, position and sample (ND102, ND103). Where it passes, the training is run
again on CUDA with CUDA_LAUNCH_BLOCKING=1, so that the line is the one that failed.

## Why it matters
The line in the message is that of whatever waited for the device next, and nothing more can be asked of the process.

## Example
    RuntimeError: CUDA error: device-side assert triggered

## Fix
That of the finding the second look leads to.

## Options
`--budget` limits the second look.

## See also
ND102 index-out-of-range, ND103 label-out-of-range, ND702 cublas-failure
""",
    ),
    Rule(
        code="ND702",
        name="cublas-failure",
        severity="critical",
        summary="cuBLAS cannot start, or fails",
        check=_cublas_failure,
        doc="""\
## What it checks
Exceptions that name a CUBLAS_STATUS. The failing batch is run on the CPU in a fresh process, as for ND701.

## Why it matters
CUBLAS_STATUS_ALLOC_FAILED at the first Linear is, more often than a full memory, an embedding's index out of range before it.

## Example
    RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`

## Fix
That of the finding the second look leads to; where nothing is out of range, free memory on the device.

## Options
`--budget` limits the second look.

## See also
ND102 index-out-of-range, ND701 device-side-assert, ND704 out-of-memory
""",
    ),
)
