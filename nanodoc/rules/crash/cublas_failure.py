"""## What it checks
Exceptions that name a CUBLAS_STATUS. The failing batch is run on the CPU in a fresh process, as for
ND701.

## Why it matters
CUBLAS_STATUS_ALLOC_FAILED at the first Linear is, more often than a full memory, an embedding's
index out of range before it.

## Example
    RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`

## Fix
That of the finding the second look leads to; where nothing is out of range, free memory on the
device.

## Options
`--budget` limits the second look.

## See also
ND102 index-out-of-range, ND701 device-side-assert, ND704 out-of-memory
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.cuda_errors import cublas_status
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.failure_claims import failure_claim


@rule(
    "ND702",
    "cublas-failure",
    "critical",
    "cuBLAS cannot start, or fails",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
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
        explanation="An index out of range in an earlier kernel leaves the device in a state in "
        "which cuBLAS can't start; else memory is full."
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
