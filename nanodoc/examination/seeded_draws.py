"""Random draws that follow the same seed in every step."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

from nanodoc.facts.calls import StepCalls
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, nodes_of

_SEEDING = "manual_seed"
Seeds = dict[tuple[SourceSpan | None, str], float]
"""By place and name of the call, the seed of the first draw since a generator was seeded."""


def seeds_of(calls: StepCalls) -> Seeds:
    """Those of a step."""
    return {(c.site, c.name): c.notes.seed for c in calls.calls if c.notes.seed is not None}


def redrawn(calls: StepCalls, others: Sequence[Seeds]) -> tuple[int, ...]:
    """Positions of the draws that follow the same seed in every other step that was looked at."""
    seeds = seeds_of(calls)
    known = {at for at, seed in seeds.items() if all(o.get(at) == seed for o in others)}
    return tuple(c.index for c in calls.calls if others and (c.site, c.name) in known)


def seeded_at(calls: StepCalls, drawn: Sequence[int]) -> SourceSpan | None:
    """The last line that seeds a generator before the first of these draws, in the function around
    it; None where that has none."""
    place = calls.calls[drawn[0]].site if drawn else None
    if place is None:
        return None
    nodes = nodes_of(os.path.abspath(place.file))
    around = [
        node
        for node in nodes
        if isinstance(node, FUNCTION) and node.lineno <= place.line <= (node.end_lineno or 0)
    ]
    scope = max(around, key=lambda node: node.lineno, default=None)
    lines = [
        node.lineno
        for node in (ast.walk(scope) if scope is not None else ())
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == _SEEDING
        and node.lineno <= place.line
    ]
    return line_span(place.file, max(lines), place.function) if lines else None
