"""## What it checks
With `--timeout` under torchrun: where every rank stood when none went on; and ranks that are
through while others still wait in a collective.

## Why it matters
The rank that reports the timeout is the one that waited, not the one that is late.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build --timeout 2m

## Fix
Look at the line of the rank that is behind. Ranks with fewer batches: DistributedSampler(...,
drop_last=True).

## Options
`--timeout 2m`.

## See also
ND712 hung-step, ND801 rank-local-failure
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import ENDED, HUNG, ROOTS, WELL, RankOutcome
from nanodoc.rules.base import count
from nanodoc.rules.ranks.outcomes import named, told_of

_PHASES = ("", "setup", "data", "forward", "backward", "unscale", "optimizer")


@rule(
    "ND804",
    "desynchronised-ranks",
    "critical",
    "ranks that wait for one another for ever",
    supersedes=("ND712",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    hung = [one for one in evidence.ranks if one.ended == HUNG]
    through = [one for one in evidence.ranks if one.ended == WELL]
    left = [one for one in evidence.ranks if one.ended == ENDED and "was through after" in one.why]
    # the one that hung was ended, and left them
    peers = [one for one in evidence.ranks if one.peer]
    early = bool(peers and through)  # a rank that waited for one that was through
    if len(evidence.ranks) < 2 or not (hung or left or early):
        return
    if any(one.ended in ROOTS and one.ended != HUNG and not one.peer for one in evidence.ranks):
        return
    waiting = hung + left + peers
    if through:
        behind = sorted(through, key=lambda one: one.steps)
        title = (
            f"{named([one.rank for one in behind])} ended after {count(behind[0].steps, 'step')}, "
            f"{named([one.rank for one in waiting])} went on and "
            f"wait{'s' if len(waiting) == 1 else ''}"
        )
        why = (
            "A collective needs every rank. Ranks with fewer batches leave the others waiting for "
            "ever."
        )
        fixes = [
            Fix(
                title="give every rank equally many batches: DistributedSampler(..., "
                "drop_last=True), or model.join() around the loop",
                confidence="likely",
            )
        ]
        if all(one.steps > (other.step or 0) for one in behind for other in waiting):
            why = (
                "They did equally many steps, and the one that was through had entered fewer "
                "collectives: a rank skips one where a step returns early or leaves its backward "
                "out."
            )
            fixes = [
                Fix(
                    title="let every rank take part in every step's collectives: backward on a "
                    "loss times zero instead of a skipped step",
                    confidence="likely",
                )
            ]
    else:
        least = min(map(_progress, waiting))
        behind = [one for one in waiting if _progress(one) == least]
        fixes = []
        if len(behind) == len(waiting):
            title = "all ranks stand still at the same place"
            why = (
                "None is behind another: they wait for something outside, or in collectives of a "
                "different kind or order."
            )
        else:
            ahead = [one.rank for one in waiting if one not in behind]
            title = (
                f"{named([one.rank for one in behind])} stand{'s' if len(behind) == 1 else ''} "
                f"still in the {behind[0].phase} of step {behind[0].step}, {named(ahead)} "
                f"wait{'s' if len(ahead) == 1 else ''} further on"
            )
            why = (
                "The ranks that are further on wait in a collective that the one behind has not "
                "entered."
            )
    first = behind[0]
    yield Claim(
        root=("ranks",),
        specificity=Specificity.SPECIAL,
        finding=rule.finding(
            confidence=confidence(
                0.4,
                0.5 if len(behind) < len(evidence.ranks) else 0.0,
                0.4 if first.location is not None else 0.0,
            ),
            title=title,
            explanation=why,
            culprit=Culprit(
                kind="op" if first.location else "environment",
                location=first.location if first.ended != WELL else waiting[0].location,
            ),
            phase=first.phase or "backward",
            step=first.step if first.ended != WELL else waiting[0].step,
            rank=first.rank,
            evidence=tuple(
                (
                    f"rank {one.rank}",
                    told_of(one)
                    + (f", at {one.location.file}:{one.location.line}" if one.location else ""),
                )
                for one in evidence.ranks
            ),
            fixes=tuple(fixes),
        ),
    )


def _progress(one: RankOutcome) -> tuple[int, int, bool]:
    """How far it has come; of two in the same phase, the one that waits in a collective is further
    on."""
    return (
        one.step if one.step is not None else -1,
        _PHASES.index(one.phase) if one.phase in _PHASES else 0,
        one.waits,
    )
