"""ND801 to ND804 and ND806: what only shows when the ranks of a distributed run are looked at
together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

from nanodoc.facts.ranks import CLEAN, ENDED, HUNG, LOST, WELL, RankOutcome, spans_of
from nanodoc.rules.base import count

T = TypeVar("T", bound=Hashable)


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
        HUNG: "stood still",
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
