"""Which of the fixes that were tried are shown, and in which order."""

from __future__ import annotations

import math

from nanodoc.diagnosis.finding import Fix
from nanodoc.diagnosis.remedy import WithoutBatch, WithoutSamples

_MOST_FIXES = 3  # shown of those that were tried


def best_first(fixes: list[Fix]) -> tuple[Fix, ...]:
    """Fixes that were seen to work come first, of those the one that moves the healthy part least,
    and samples are left out last; one that was seen to fail is only said where nothing else is
    left. Of several ways to do the same the best is said. The order is the rule's otherwise."""
    fixes = sorted(
        fixes,
        key=lambda fix: ({True: 0, None: 1, False: 2}[fix.verified], _leaves_out(fix), _moved(fix)),
    )
    best: dict[str, Fix] = {}
    for fix in fixes:
        best.setdefault(fix.title, fix)
    useful = [fix for fix in best.values() if fix.verified is not False]
    return tuple(useful[:_MOST_FIXES] or fixes[:1])


def _leaves_out(fix: Fix) -> bool:
    return bool(fix.verified) and isinstance(fix.remedy, (WithoutSamples, WithoutBatch))


def _moved(fix: Fix) -> float:
    """The order of magnitude by which a verified fix moves what was healthy; differences of
    rounding don't count."""
    if not fix.verified or not fix.loss_change:
        return -12.0
    return max(-7.0, math.floor(math.log10(fix.loss_change)))
