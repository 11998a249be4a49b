"""## What it checks
With `--timeout`: that a step is finished, or its next phase begun, within that time. Where not, the
process is asked for its stack and ended. Where it waits for a loader's workers, the same batches
are loaded without workers, which tells the line and the sample.

## Why it matters
A deadlock (a lock taken twice, a worker pool forked with a lock held, a collective that another
rank never enters) looks like slow training for hours.

## Example
    nanodoc run train.py:build --timeout 5m

## Fix
The underlined line waits: see for what.

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
    waits = "" if death.frames else " It did not say where it is."
    fixes = [
        Fix(
            title="where a step takes that long by nature, give it more with --timeout",
            confidence="maybe",
        )
    ]
    if death.phase == "data" and not death.frames:
        title = "where the loader has workers, num_workers=0 shows which sample hangs"
        if death.again is False:
            title = (
                "it hangs in workers only: a lock that was held, or a thread that ran, before the "
                "fork; multiprocessing_context='spawn' starts workers without them"
            )
        fixes.insert(0, Fix(title=title, confidence="maybe"))
    yield death_claim(
        rule, death, title=f"the training {death.how}", explanation=said + waits, fixes=fixes
    )
