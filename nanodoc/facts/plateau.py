"""What the course of a plain supervised loss says: that it stayed where guessing would be, or
above. Pure arithmetic on evidence; without torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from nanodoc.facts.calls import ArgumentFacts, CallFacts
from nanodoc.facts.course import mean_cross_entropy
from nanodoc.facts.evidence import Evidence
from nanodoc.vocabulary.calls import SUPERVISED

NEAR = 0.02
"""Of ln C."""
SHORTEST = 30
"""Steps that a plateau needs to be one."""
NO_BETTER = 0.9
"""Times its start: less than the 2 of RULES, ND606, since here a smaller learning rate must be
shown to end far lower."""
HELPS = 0.1
"""Of the way that the loss has come: so much further it comes with a change that helps."""
HALVED = 0.5
"""Times the loss that the run came to: also far enough, however high it began."""
NEARLY_ALL = 0.9
"""Of the later half of the steps, those whose loss has to be lower where it need not be by much."""
VISIBLY = 0.02
"""Of the way that the loss has come: so much lower it has to be then."""
MOSTLY = 0.8
"""Of the later half of the steps, those whose loss is lower: each is the same batch."""


@dataclass(frozen=True, slots=True)
class Plateau:
    """A cross entropy that stays at `chance` = ln C."""

    loss: CallFacts
    classes: int
    chance: float
    late: float
    """Median loss of the last quarter."""


def stuck_at_chance(evidence: Evidence) -> Plateau | None:
    """None where the loss is no mean cross entropy, has moved away from ln C, or is still in a
    warm-up."""
    found, losses, stats = mean_cross_entropy(evidence), evidence.losses, evidence.stats
    if found is None or stats is None or len(losses) < SHORTEST:
        return None
    loss, classes = found
    chance = math.log(classes)
    quarter = len(losses) // 4
    early, late = statistics.median(losses[:quarter]), statistics.median(losses[-quarter:])
    rates = [max(rate) for rate in stats.rates if rate]
    if not rates or rates[-1] < 0.5 * max(rates) or rates[-1] > 1.5 * statistics.median(rates):
        return None
    near = (
        abs(early - chance) <= 5 * NEAR * chance
        and (1 - NEAR) * chance <= late <= (1 + 5 * NEAR) * chance
    )
    return Plateau(loss, classes, chance, late) if near else None


def no_better(evidence: Evidence) -> bool:
    """A supervised loss that ends where it began or above: one optimizer, and one of torch's losses
    against targets that the batch brings. The losses of critics, policies and bootstrapped targets
    may rise as a run goes well."""
    calls, losses = (
        evidence.inspection.calls if evidence.inspection is not None else None,
        evidence.losses,
    )
    if (
        calls is None
        or len(losses) < SHORTEST
        or len(calls.losses) != 1
        or len(evidence.optimizer_sites) != 1
    ):
        return False
    loss = calls.calls[calls.losses[0]]
    if (
        loss.name not in SUPERVISED
        or len(loss.arguments) < 2
        or not all(map(math.isfinite, losses))
    ):
        return False
    target = calls.origin(loss.arguments[1])
    given = isinstance(target, ArgumentFacts) and target.of_batch
    return given and losses[0] > 0 and late_loss(losses) > NO_BETTER * losses[0]


def late_loss(losses: Sequence[float]) -> float:
    """The median of the last quarter."""
    return statistics.median(losses[-max(len(losses) // 4, 1) :])


def comes_further(own: Sequence[float], changed: Sequence[float]) -> bool:
    """The same steps with a change end lower than the run's `own`: by a tenth of the way that the
    loss had come, or at less than half of it, and in four of five of the later steps."""
    half = len(own) // 2
    pairs = list(zip(changed, own, strict=True))[half:]
    late, new = late_loss(own), late_loss(changed)
    further = late - new >= HELPS * abs(own[0] - late) or 0 < new < HALVED * late
    return further and sum(new < old for new, old in pairs) >= MOSTLY * len(pairs)


def nearly_always_lower(own: Sequence[float], changed: Sequence[float]) -> bool:
    """The same steps with a change end lower than the run's `own` in nearly all of the later ones,
    if not by much."""
    half = len(own) // 2
    pairs = list(zip(changed, own, strict=True))[half:]
    late, new = late_loss(own), late_loss(changed)
    visibly = late - new >= VISIBLY * abs(own[0] - late)
    return visibly and sum(new < old for new, old in pairs) >= NEARLY_ALL * len(pairs)
