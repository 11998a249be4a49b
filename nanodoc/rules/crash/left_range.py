"""What rules say of a value that left its range in the step: where, and what it was made of."""

from __future__ import annotations

import math
import sys
from typing import Any

from nanodoc.facts.crash import LeftRange
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan


def left_in_step(evidence: Evidence, high: float | None = None) -> LeftRange | None:
    """Where the value that was refused left its range; with `high`, only if that is the largest
    value that is taken."""
    left = evidence.crash.left if evidence.crash is not None else None
    return left if left is not None and high in (None, left.high) else None


def told_of(left: LeftRange) -> str:
    """One sentence."""
    op = left.op
    made = _span(op.outputs[0].minimum, op.outputs[0].maximum) if op.outputs else "values"
    given = [
        _span(facts.minimum, facts.maximum)
        for facts in op.inputs
        if facts.minimum is not None and facts.dtype != "bool"
    ]
    of = f" of {' and '.join(given[:2])}" if given else ""
    numbers = ", ".join(f"{v:g}" for v in op.scalars.values() if _is_number(v))
    written = f" and {numbers}" if of and numbers and len(given) == 1 else ""
    return f"The values leave the range here: `{op.short}` makes {made}{of}{written}."


def looked_up(left: LeftRange, place: SourceSpan | None) -> list[tuple[str, Any]]:
    """The line of the lookup, as evidence, where it is another one."""
    site = left.op.site
    if place is None or site is None or (place.file, place.line) == (site.file, site.line):
        return []
    return [("refused at", f"{place.place} in {place.function}: {place.code.splitlines()[0]}")]


def _span(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "values"
    return f"{low:.9g}" if low == high else f"{low:.9g} … {high:.9g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def left_fix(left: LeftRange) -> str | None:
    """For values that end one too high; None for others."""
    if left.op.short.startswith("lift"):
        return None  # numbers that somebody wrote
    made = left.op.outputs[0].maximum if left.op.outputs else None
    drawn = not left.op.inputs
    if made is None or not left.high < made < left.high + 2:
        return None
    if drawn:
        return f"end one earlier: the largest that is taken is {left.high:g}"
    return f"scale to {left.high:g} instead of {left.high + 1:g}, or clamp(max={left.high:g})"


def limits(left: LeftRange) -> str:
    """The range that is taken."""
    low = 0.0 if 0 < left.low < sys.float_info.min else left.low  # the number next to 0
    if left.high == math.inf:
        return f"numbers above {low:g}" if low != left.low else f"{low:g} and more"
    return f"{low:g} … {left.high:g}"
