"""## What it checks
With `--timeout` under torchrun: where each rank was when none made progress, and the last
collective that each of them entered (its number in its group, op and shapes, from torch's flight
recorder); ranks that have finished while others still wait in a collective; and a rank that gloo
aborted because a different rank called the same collective with other shapes.

## Why it matters
The rank that reports the timeout is the one that waited, not the one that is late.

## Example
    torchrun --nproc-per-node 4 -m nanodoc run train.py:build --timeout 2m

## Fix
Look at the line of the rank that lags. For ranks with fewer batches, use DistributedSampler(...,
drop_last=True). If the ranks called different ops, or the same op with different shapes, under the
same number, look for a condition that not every rank meets.

## Options
`--timeout 2m`.

## See also
ND712 hung-step, ND801 rank-local-failure
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import ENDED, HUNG, ROOTS, WELL, RankOutcome
from nanodoc.rules.base import Account, count
from nanodoc.rules.ranks.outcomes import by_what_they_say, last_entered, named, told_of
from nanodoc.rules.ranks.split_collectives import (
    aborted_in_gloo,
    account_of,
    account_of_abort,
    split_of,
)

_MOST_CALLS = 4
"""Lines of a rank's stack that are told, the innermost first."""
_PHASES = ("", "setup", "data", "forward", "backward", "unscale", "optimizer")


@rule(
    "ND804",
    "desynchronised-ranks",
    "critical",
    "ranks that wait for each other forever",
    supersedes=("ND711", "ND712"),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if (pair := aborted_in_gloo(ranks)) is not None:
        first, others = pair
        yield _claim(rule, ranks, account_of_abort(first, others), first, first)
        return
    hung = [outcome for outcome in ranks if outcome.ended == HUNG]
    through = [outcome for outcome in ranks if outcome.ended == WELL]
    left = [
        outcome
        for outcome in ranks
        if outcome.ended == ENDED and "was through after" in outcome.why
    ]
    # the one that hung was ended, and left them
    peers = [outcome for outcome in ranks if outcome.peer]
    early = bool(peers and through)  # a rank that waited for one that was through
    if len(ranks) < 2 or not (hung or left or early):
        return
    if any(
        outcome.ended in ROOTS and outcome.ended != HUNG and not outcome.peer for outcome in ranks
    ):
        return
    waiting = hung + left + peers
    if through:
        behind = sorted(through, key=lambda outcome: outcome.steps)
        yield _claim(rule, ranks, _some_through(behind, waiting), behind[0], waiting[0])
    elif split := split_of(waiting):
        yield _claim(rule, ranks, account_of(split), split.fewer[0], split.where)
    else:
        behind = _behind(waiting)
        account = _none_through(behind, waiting)
        yield _claim(rule, ranks, account, behind[0], behind[0], apart=len(behind) < len(ranks))


def _claim(
    rule: Rule,
    ranks: Sequence[RankOutcome],
    account: Account,
    first: RankOutcome,
    where: RankOutcome,
    *,
    apart: bool = True,
) -> Claim:
    """`first` is the rank that is named, `where` the one whose line is shown; `apart`: they differ
    from other ranks."""
    return Claim(
        root=("ranks",),
        specificity=Specificity.SPECIAL,
        finding=rule.finding(
            confidence=confidence(
                0.4, 0.5 if apart else 0.0, 0.4 if where.location is not None else 0.0
            ),
            title=account.title,
            explanation=account.explanation,
            culprit=Culprit(
                kind="op" if where.location else "environment", location=where.location
            ),
            phase=where.phase or "backward",
            step=where.step,
            rank=first.rank,
            evidence=tuple(
                by_what_they_say((outcome.rank, _told_whole(outcome)) for outcome in ranks)
            ),
            fixes=account.fixes,
        ),
    )


def _told_whole(outcome: RankOutcome) -> str:
    lines = outcome.stack or ((outcome.location,) if outcome.location else ())
    calls = [f"{line.place} in {line.function}" for line in lines[: -_MOST_CALLS - 1 : -1]]
    place = f", at {', called from '.join(calls)}" if calls else ""
    return f"{told_of(outcome)}{place}{last_entered(outcome)}"


def _some_through(behind: list[RankOutcome], waiting: list[RankOutcome]) -> Account:
    """Ranks that are through, those with the fewest steps first, while others wait."""
    furthest = max((waiter.step or 0 for waiter in waiting), default=-1)
    if all(outcome.steps > furthest for outcome in behind):
        why = (
            "They did the same number of steps, but the one that finished had entered fewer "
            "collectives: a rank skips one if a step returns early or skips its backward."
        )
        fix = (
            "let every rank take part in every step's collectives: call backward on the loss "
            "times zero instead of skipping a step"
        )
    else:
        why = (
            "A collective needs every rank. Ranks with fewer batches leave the others waiting "
            "forever."
        )
        fix = (
            "give every rank the same number of batches: DistributedSampler(..., "
            "drop_last=True), or model.join() around the loop"
        )
    return Account(
        title=f"{_names(behind)} ended after {count(behind[0].steps, 'step')}, {_names(waiting)} "
        f"continued and wait{'s' if len(waiting) == 1 else ''}",
        explanation=why,
        fixes=(Fix(title=fix, confidence="likely"),),
    )


def _none_through(behind: list[RankOutcome], waiting: list[RankOutcome]) -> Account:
    """All wait; `behind` are those that have come least far."""
    known = {outcome.rank for outcome in behind}
    ahead = [outcome for outcome in waiting if outcome.rank not in known]
    if not ahead:
        return Account(
            title="all ranks are stuck at the same place",
            explanation="None of them lags: they wait for something outside, or in collectives "
            "of a different kind or order.",
        )
    step, phase = behind[0].step, behind[0].phase
    place = "before the end of the first step" if step is None else f"in the {phase} of step {step}"
    return Account(
        title=f"{_names(behind)} {'is' if len(behind) == 1 else 'are'} stuck {place}, "
        f"{_names(ahead)} wait{'s' if len(ahead) == 1 else ''} further on",
        explanation=_missed(behind, ahead),
    )


def _behind(waiting: list[RankOutcome]) -> list[RankOutcome]:
    """Those that the others wait for: that have not entered a collective in which another waits,
    and themselves wait in none that others have not entered; else those that have come least far,
    by step and phase."""
    awaited: dict[tuple[str, str], int] = {}
    for outcome in waiting:
        for one in outcome.collectives:
            if one.waits:
                awaited[one.key] = max(awaited.get(one.key, 0), one.number)
    entered: dict[tuple[str, str], int] = {}
    for outcome in waiting:
        for one in outcome.collectives:
            entered[one.key] = min(entered.get(one.key, one.entered), one.entered)
    missing = [
        outcome
        for outcome in waiting
        if any(one.entered < awaited.get(one.key, 0) for one in outcome.collectives)
        or (awaited and not outcome.collectives and not outcome.waits)
    ]
    # one that waits for another is behind only because that one is
    first = [
        outcome
        for outcome in missing
        if not any(one.waits and entered[one.key] < one.number for one in outcome.collectives)
    ]
    if missing and len(missing) < len(waiting):
        return first or missing
    least = min(map(_progress, waiting))
    return [outcome for outcome in waiting if _progress(outcome) == least]


def _missed(behind: list[RankOutcome], ahead: list[RankOutcome]) -> str:
    """What those that are ahead wait in, where it is known; else it is told in general."""
    last = {one.key: one.entered for one in behind[0].collectives}
    for outcome in ahead:
        for one in reversed(outcome.collectives):
            known = last.get(one.key, None if last else 0)  # one that tells none has entered none
            if one.waits and known is not None and known < one.number:
                told = f": its last one in this group was {known}" if known else ""
                return (
                    f"{_names([outcome]).capitalize()} waits in {one}, which "
                    f"{_names(behind[:1])} has not entered{told}."
                )
    return (
        "The ranks that are further on wait in a collective that the lagging rank has not entered."
    )


def _names(outcomes: list[RankOutcome]) -> str:
    return named([outcome.rank for outcome in outcomes])


def _progress(outcome: RankOutcome) -> tuple[int, int, bool]:
    """How far it has come; of two in the same phase, the one that waits in a collective is further
    on."""
    return (
        outcome.step if outcome.step is not None else -1,
        _PHASES.index(outcome.phase) if outcome.phase in _PHASES else 0,
        outcome.waits,
    )
