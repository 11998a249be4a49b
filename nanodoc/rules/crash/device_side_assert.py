"""## What it checks
An exception after which the device no longer answers this process: CUDA's "device-side assert
triggered" and similar errors, and torch's AcceleratorError of any device. The failing batch is kept
on the host and is run on the CPU in a fresh process: an index or label out of range is then named
with its value, position and sample (ND102, ND103). If the batch passes there, the training is run
again on CUDA with CUDA_LAUNCH_BLOCKING=1, so that the line is the one that failed.

## Why it matters
The line in the message is whichever line waited for the device next, and the process cannot be
examined any further.

## Example
    RuntimeError: CUDA error: device-side assert triggered

## Fix
That of the finding of the second run.

## Options
`--budget` limits the second run.

## See also
ND102 index-out-of-range, ND103 label-out-of-range, ND702 cublas-failure
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.cuda_errors import cublas_status, names_cuda
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import device_is_lost
from nanodoc.rules.crash.failure_claims import failure_claim


@rule(
    "ND701",
    "device-side-assert",
    "critical",
    "a kernel's assertion or an illegal address, after which the device is lost",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None or not device_is_lost(failure) or cublas_status(failure.message) is not None:
        return
    ways = ["CUDA_LAUNCH_BLOCKING=1 shows the call"] if names_cuda(failure.message) else []
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
        explanation="Kernels run asynchronously: this line noticed the error and did not cause "
        "it. An index or a label out of range is the usual cause.",
        fixes=[Fix(title="; ".join(ways), confidence="likely")],
    )
