"""ND801 to ND804 and ND806: what only shows when the ranks of a distributed run are looked at
together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from nanodoc.facts.collectives import entered_last
from nanodoc.facts.ranks import (
    CLEAN,
    ENDED,
    HUNG,
    LOST,
    WELL,
    RankGradients,
    RankOutcome,
    spans_of,
)
from nanodoc.rules.base import count

T = TypeVar("T", bound=Hashable)

_ALIKE = 0.02
"""How far the ratios of several projections may lie from each other."""
_LARGE = 0.05
"""Of the largest projection: smaller ones are the difference of large numbers."""
_LEAST = 2  # projections that have to agree


def named(ranks: Sequence[int]) -> str:
    """ "rank 1", "ranks 0, 2", "ranks 0–63 but 17"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {spans_of(ranks)}"


def by_what_they_say(said: Iterable[tuple[int, T]]) -> list[tuple[str, T]]:
    """(ranks, what they say) of (rank, what it says): those that say the same together."""
    groups: dict[T, list[int]] = {}
    for rank, words in said:
        groups.setdefault(words, []).append(rank)
    return [(named(ranks), words) for words, ranks in groups.items()]


def told_of(outcome: RankOutcome) -> str:
    words = {
        WELL: "through",
        CLEAN: "finite by itself",
        "sick": "not finite by itself",
        "failed": "raised",
        "died": "died",
        HUNG: "stuck",
        ENDED: "waited",
        LOST: "gone",
    }
    known = outcome.phase and outcome.step is not None
    where = f" in the {outcome.phase} of step {outcome.step}" if known else ""
    why = f": {outcome.why}" if outcome.why and outcome.ended not in (WELL, CLEAN) else ""
    return (
        f"{words[outcome.ended]}{where if outcome.ended != WELL else ''}, "
        f"{count(outcome.steps, 'step')} done{why}"
    )


def last_entered(outcome: RankOutcome) -> str:
    """ ", in all_reduce of float [3, 4], collective 7 of group 0"; empty where it is not known."""
    last = entered_last(outcome.collectives)
    if last is None:
        return ""
    return f", {'in' if last.waits else 'the last it entered was'} {last}"


def ratio_of(each: Sequence[RankGradients]) -> float | None:
    """What was used over the mean of the ranks' own gradients; None where directions disagree, or
    ranks do."""
    used = each[0].used
    size = max((abs(value) for value in used), default=0.0)
    if not size or any(len(one.used) != len(used) or len(one.own) != len(used) for one in each):
        return None
    if any(abs(a - b) > 1e-3 * size for one in each for a, b in zip(one.used, used, strict=True)):
        return None
    means = [math.fsum(values) / len(each) for values in zip(*(o.own for o in each), strict=True)]
    largest = max(map(abs, means))
    ratios = [
        value / mean
        for value, mean in zip(used, means, strict=True)
        if abs(mean) > _LARGE * largest
    ]
    if len(ratios) < _LEAST or max(ratios) - min(ratios) > _ALIKE * abs(ratios[0]):
        return None
    return math.fsum(ratios) / len(ratios)
