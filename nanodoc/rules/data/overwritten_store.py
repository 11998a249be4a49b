"""## What it checks
Tensors that the script fills row by row between its training steps, for example with a rollout. One
is reported whose rows are stored twice, each time with another value, where nothing has read the
first one before the second replaces it. Where one tensor is written to more often than others of
the same length, nanodoc listens to its assignments one by one.

## Why it matters
What the first line stores is lost, and every later reader takes the second value for it. Flags of
episodes' ends that are stored a second time, after the environment's step, stand one step too
early: returns run across the ends of episodes.

## Example
    dones[step] = next_done
    observation, reward, done = envs.step(action)
    dones[step] = done                     # replaces what the line above has stored

## Fix
Delete the store that is not meant, or store the second value in another tensor.

## See also
ND660 unread-end-flags
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim


@rule(
    "ND173",
    "overwritten-store",
    "warning",
    "rows that are stored twice, and not read in between",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.overwritten if evidence.asides is not None else None
    if found is None:
        return
    first = found.stored_at.place if found.stored_at is not None else "an earlier line"
    yield learning_claim(
        rule,
        location_key(found.overwritten_at) or ("overwritten", found.name),
        title=f"`{found.name}` is overwritten here before anything has read what {first} stored",
        explanation=f"All {found.times} rows that {first} stored were stored again here, "
        f"{found.differing} of them with another value, and nothing had read them in between.",
        culprit=Culprit(kind="data", location=found.overwritten_at),
        phase="script",
        weight=confidence(0.6, 1 - 0.98**found.differing),
        notes=[
            ("stored first at", first),
            ("rows", found.times),
            ("of them changed", found.differing),
        ],
        fix="delete the store that is not meant, or store the second value in another tensor",
        standing=WIRED,
    )
