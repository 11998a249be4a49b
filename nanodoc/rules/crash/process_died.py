"""## What it checks
How the process that runs the training ended: a signal (SIGSEGV, SIGBUS, SIGABRT, SIGKILL …) or
os._exit. The line comes from the stack that the dying process left, or from a second run in a fresh
process that records every line; the step and the phase are always known.

## Why it matters
There is no traceback, because Python could not write one. Only what ran last is known.

## Example
    Segmentation fault (core dumped)

## Fix
The underlined line called what crashed: an extension built for a different torch, a pointer that
outlived its tensor, a worker pool that was forked after threads were started. After a SIGKILL check
memory first (`dmesg`), then the scheduler's limits.

## Options
`--budget` limits the second run. `--in-process` runs the training in nanodoc's own process; a crash
then ends nanodoc, too.

## See also
ND704 out-of-memory, ND708 loader-worker-died, ND712 hung-step
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.crash.death_claims import death_claim, meaning, place_of, short_of_memory


@rule(
    "ND711",
    "process-died",
    "critical",
    "the training process was killed, crashed, or ended itself",
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    death = evidence.death
    if death is None or death.silent_for is not None or death.in_worker or short_of_memory(death):
        return
    means = meaning(death) or (
        "The call was deliberate: no report, no exit handler and no `finally` runs after os._exit."
    )
    where = "" if death.frames else " The line is not known."
    yield death_claim(
        rule,
        death,
        title=f"the training process {death.how}",
        explanation=f"The training process {death.how} {place_of(death)}. {means}{where}",
    )
