"""## What it checks
An exception raised by `build()`, by the data, or by a step, that no more specific rule explains.
The traceback is trimmed to the frames of the user's own code.

## Why it matters
The run cannot go on. Where a NaN was behind the exception (a comparison with NaN is false and sends
code down the wrong branch), the NaN's own origin is reported instead and the exception is listed as
its effect.

## Example
    RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x16 and 32x4)

## Fix
As the message says; the innermost frame of your own code is underlined.

## See also
ND304 degenerate-decomposition, ND208 degenerate-statistics
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.explain.knowledge import explained
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.failure_claims import failure_claim


@rule(
    "ND709",
    "user-exception",
    "critical",
    "the training code raised an exception",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    failure = evidence.failure
    if failure is None:
        return
    where = {
        "setup": "while the recipe was built",
        "data": "while a batch was loaded",
        "script": "outside of its training's steps",
    }.get(failure.phase, f"in the {failure.phase} of step {evidence.failure_step}")
    title = f"{failure.type}: {failure.first_line}" if failure.first_line else failure.type
    # what the user's own code raises it words itself; torch's and Python's messages are known
    known = explained(f"{failure.type}: {failure.message}") if failure.raised_by_torch else None
    means = f" {known.means}" if known is not None else ""
    fixes = (
        [Fix(title=known.fix.strip().splitlines()[0], confidence="maybe")]
        if known is not None
        else []
    )
    usual = [("usual cause", known.causes[0])] if known is not None and known.causes else []
    yield failure_claim(
        rule,
        evidence,
        title=title,
        explanation=f"The code raised {failure.type} {where}.{means}",
        fixes=fixes,
        extra=usual,
        specificity=Specificity.FALLBACK,
    )
