"""Random draws that follow the same seed in every step."""

from __future__ import annotations

from collections.abc import Sequence

from nanodoc.facts.calls import StepCalls
from nanodoc.facts.source import SourceSpan

Seeds = dict[tuple[SourceSpan | None, str], float]
"""By place and name of the call, the seed of the first draw since a generator was seeded."""


def seeds_of(calls: StepCalls) -> Seeds:
    """Those of a step."""
    return {(c.site, c.name): c.notes["seeded"] for c in calls.calls if "seeded" in c.notes}


def redrawn(calls: StepCalls, others: Sequence[Seeds]) -> tuple[int, ...]:
    """Positions of the draws that follow the same seed in every other step that was looked at."""
    seeds = seeds_of(calls)
    known = {at for at, seed in seeds.items() if all(o.get(at) == seed for o in others)}
    return tuple(c.index for c in calls.calls if others and (c.site, c.name) in known)
