"""Whether a classifier's loss has stayed where guessing would be. Pure arithmetic on evidence; without torch."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from nanodoc.call_evidence import CallFacts
from nanodoc.evidence import Evidence

NEAR = 0.02
"""Of ln C."""
SHORTEST = 30
"""Steps that a plateau needs to be one."""
_CLASSIFIES = ("cross_entropy", "nll_loss")


@dataclass(frozen=True, slots=True)
class Plateau:
    """A cross entropy that stays at `chance` = ln C."""

    loss: CallFacts
    classes: int
    chance: float
    late: float
    """Median loss of the last quarter."""


def stuck_at_chance(evidence: Evidence) -> Plateau | None:
    """None where the loss is no mean cross entropy, has moved away from ln C, or is still in a warm-up."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    losses, stats = evidence.losses, evidence.stats
    if calls is None or stats is None or len(losses) < SHORTEST or len(calls.losses) != 1:
        return None
    loss = calls.calls[calls.losses[0]]
    if loss.name not in _CLASSIFIES or loss.options.get("reduction", "mean") != "mean":
        return None
    classes = loss.notes.get("classes", 0)
    chance = math.log(classes) if classes > 1 else 0.0
    quarter = len(losses) // 4
    early, late = statistics.median(losses[:quarter]), statistics.median(losses[-quarter:])
    rates = [max(one) for one in stats.rates if one]
    if not chance or not rates or rates[-1] < 0.5 * max(rates) or rates[-1] > 1.5 * statistics.median(rates):
        return None
    near = abs(early - chance) <= 5 * NEAR * chance and (1 - NEAR) * chance <= late <= (1 + 5 * NEAR) * chance
    return Plateau(loss, int(classes), chance, late) if near else None
