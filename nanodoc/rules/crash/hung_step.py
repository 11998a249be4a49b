"""## What it checks
With `--timeout`: whether a step finishes, or its next phase begins, within that time. If not, the
process is asked for its stack and ended. If it waits for a loader's workers, the same batches are
loaded without workers, which shows the line and the sample.

## Why it matters
A deadlock (a lock taken twice, a worker pool forked while a lock was held, a collective that a
different rank never enters) looks like slow training for hours.

## Example
    nanodoc run train.py:build --timeout 5m

## Fix
See what the underlined line waits for.

## Options
`--timeout 90s`: there is no limit by default.

## See also
ND711 process-died, ND804 desynchronised-ranks
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.death_claims import (
    death_claim,
    place_of,
)


@rule(
    "ND712",
    "hung-step",
    "critical",
    "the training gave no sign of life for as long as --timeout allows",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    death = evidence.death
    if death is None or death.silent_for is None or death.in_worker:
        return
    said = f"The training {death.how}, {place_of(death)}, and was ended."
    waits = "" if death.frames else " Its stack could not be read."
    fixes = [
        Fix(
            title="if a step normally takes that long, raise --timeout",
            confidence="maybe",
        )
    ]
    if death.phase == "data" and not death.frames:
        title = "if the loader has workers, num_workers=0 shows which sample hangs"
        if death.again is False:
            title = (
                "it hangs only in workers: a lock was held, or a thread was running, at the fork; "
                "multiprocessing_context='spawn' starts workers without them"
            )
        fixes.insert(0, Fix(title=title, confidence="maybe"))
    yield death_claim(
        rule, death, title=f"the training {death.how}", explanation=said + waits, fixes=fixes
    )
