"""## What it checks
Exceptions that name a CUBLAS_STATUS. The failing batch is run on the CPU in a fresh process, as for
ND701.

## Why it matters
CUBLAS_STATUS_ALLOC_FAILED at the first Linear usually follows an embedding index out of range, not
a full memory.

## Example
    RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`

## Fix
That of the finding of the second run. If nothing is out of range, free memory on the device.

## Options
`--budget` limits the second run.

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
        title=f"cuBLAS returned {status}",
        specificity=Specificity.FAMILY,
        explanation="An index out of range in an earlier kernel leaves the device in a state in "
        "which cuBLAS can't start; otherwise the memory is full."
        if alloc
        else "An earlier kernel broke the device's state, or cuBLAS was given invalid arguments.",
        fixes=[
            Fix(
                title="CUDA_LAUNCH_BLOCKING=1 shows the first kernel that fails; on the CPU the "
                "same step names the index: --device cpu",
                confidence="likely",
            )
        ],
    )
