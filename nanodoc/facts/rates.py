"""Whether a smaller learning rate would have done far better on the same steps: what makes that
worth trying, and what shows it. Pure arithmetic on evidence; without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nanodoc.facts.course import has_fixed_targets
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import SHORTEST, late_loss, no_better

COMPARED = 300
"""The first so many steps of a run are compared."""
_SPIKE = 10.0  # times the loss at the start
_NOT_BACK = 0.5  # of the loss at the start
_LOWER = 1.3  # times the smaller rate's loss
_SHARE = 0.4  # of the way down that the smaller rate goes


def worth_smaller_rates(evidence: Evidence, *, hot: bool) -> bool:
    """A finite run of one optimizer whose loss has a reason to fall, and which fell badly, or whose
    rate is high for its kind of optimizer (`hot`)."""
    losses = evidence.losses
    if len(losses) < SHORTEST or not all(map(math.isfinite, losses)) or losses[0] <= 0:
        return False
    if no_better(evidence):
        return True
    if len(evidence.optimizer_sites) != 1 or not has_fixed_targets(evidence):
        return False
    jumped = max(losses) > _SPIKE * losses[0] and late_loss(losses) > _NOT_BACK * losses[0]
    return hot or jumped


def compared(evidence: Evidence) -> Sequence[float]:
    """The losses that are compared with those of smaller rates."""
    return evidence.losses[:COMPARED]


def far_lower(losses: Sequence[float], smaller: float) -> bool:
    """A smaller rate's late loss `smaller` is far below the run's own: the run missed two fifths of
    the way down."""
    late = late_loss(losses)
    if smaller >= losses[0] or late < _LOWER * max(smaller, 0.0):
        return False
    return late - smaller >= _SHARE * (losses[0] - smaller)
