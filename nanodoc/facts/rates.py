"""Whether a smaller learning rate would have done far better on the same steps: what makes that
worth trying, and what shows it. Pure arithmetic on evidence; without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, stdev

from nanodoc.facts.course import has_fixed_targets, is_weighed, mean_cross_entropy
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import OVERWRITING
from nanodoc.facts.plateau import HALVED, SHORTEST, late_loss, no_better
from nanodoc.facts.trials import RerunFacts, Stretch
from nanodoc.vocabulary.calls import BINARIES, LAYERS

COMPARED = 300
"""The first so many steps of a run are compared."""
LONG_ENOUGH = 100
"""Steps: a rate that is merely low shows within as many."""
_SHORT = 40  # steps: in as many a rate shows that is low by powers of ten
_KNOWS = 0.7  # of what guessing costs: less is a model that has learnt before
_SURE = 2.0  # times what guessing costs, as ND611 tells
_RISING = 1.5  # times the median rate
_SPIKE = 10.0  # times the loss at the start
_NOT_BACK = 0.5  # of the loss at the start
_PARTS = 10  # of a run
_NO_FURTHER = 0.95  # of the second quarter's loss
_LOWER = 1.3
"""Times a smaller rate's loss, and times the run's own lowest level: batches differ by less."""
_VISIBLE = 0.05  # of the way down: what a loss must have climbed
_EXACT = 1e-6  # relative: what float64 leaves of a product of three numbers, and more
_FAR_ABOVE = 5.0  # times the rate that was given: a schedule on purpose is given what it reaches
_SHARE_OF_GIVEN = 0.2  # of the way down, with the rate that was given in place of one raised so
_SHARE_OF_TWICE = 0.2  # of the way down, where the run itself ends twice as high and more
_MANY_TIMES = 2.5  # as high,
_SHARE_OF_MANY = 0.1  # and so much of the way down
_SHARE = 1 / 3  # of the way down that the smaller rate goes


def worth_smaller_rates(evidence: Evidence, *, hot: bool) -> bool:
    """A finite run of one optimizer whose loss has a reason to fall, and which fell badly, stands
    still or climbs again, or whose rate is high for its kind of optimizer (`hot`)."""
    losses = evidence.losses
    if len(losses) < SHORTEST or not all(map(math.isfinite, losses)) or losses[0] <= 0:
        return False
    if no_better(evidence):
        return True
    if len(evidence.optimizer_sites) != 1 or not has_fixed_targets(evidence):
        return False
    if is_raised(evidence):
        return True
    jumped = max(losses) > _SPIKE * losses[0] and late_loss(losses) > _NOT_BACK * losses[0]
    return hot or jumped or _stalled(losses) or climbed(losses) is not None


def is_raised(evidence: Evidence) -> bool:
    """A schedule raised the rate far above the one that the optimizer was given; not one that is
    given the rates themselves."""
    schedulers = evidence.loop.schedulers if evidence.loop is not None else ()
    if evidence.stats is None or any(one.type in OVERWRITING for one in schedulers):
        return False
    return evidence.stats.raised >= _FAR_ABOVE


def climbed(losses: Sequence[float]) -> float | None:
    """The lowest level of a long run whose loss had come down, has climbed to well above it since
    and has not come back; None for other runs."""
    if len(losses) < LONG_ENOUGH:
        return None
    lowest, late = _lowest(losses)[0], late_loss(losses)
    # a model that has learnt all there is jumps between 0.001 and 0.002
    visibly = late - lowest > _VISIBLE * (losses[0] - lowest)
    return lowest if 0 < _LOWER * lowest < late < losses[0] and visibly else None


def _lowest(losses: Sequence[float]) -> tuple[float, int]:
    """(the lowest level of a tenth of a run, the first step of that tenth)"""
    size = len(losses) // _PARTS
    return min((median(losses[i : i + size]), i) for i in range(0, len(losses) - size + 1, size))


def rate_before_climbing(evidence: Evidence) -> float | None:
    """A third of the learning rate at the lowest level of a loss that climbed again, where the
    rate went on to rise; the given rate, where a schedule raised it far above that; None otherwise.
    Held at the rate of the lowest level itself, the loss would climb, too."""
    if is_raised(evidence) and evidence.stats is not None:
        return evidence.stats.given_rates[0]
    losses, rates = compared(evidence), evidence.stats.rates if evidence.stats else ()
    if climbed(losses) is None or len(rates) < len(losses):
        return None
    there = max(rates[_lowest(losses)[1]], default=0.0)
    after = max((max(step, default=0.0) for step in rates[: len(losses)]), default=0.0)
    return there / 3 if 0 < _RISING * there < after else None


def _stalled(losses: Sequence[float]) -> bool:
    """A long run whose loss has come down a little, and no further in its second half and more."""
    if len(losses) < LONG_ENOUGH:
        return False
    late, second = late_loss(losses), median(losses[len(losses) // 4 : len(losses) // 2])
    return late > _NOT_BACK * losses[0] and late > _NO_FURTHER * second


def worth_larger_updates(evidence: Evidence) -> bool:
    """A classification that came no lower in a run that may be long enough to show it, outside of a
    warm-up; not one that began far below what guessing costs, as a trained model's does. What that
    is is not known of other losses: of those, one that stands still is, or one whose weights hardly
    move."""
    rates = [max(step) for step in (evidence.stats.rates if evidence.stats else ()) if step]
    losses = evidence.losses
    if not rates or len(losses) < _SHORT or rates[-1] > _RISING * median(rates):
        return False
    if 0 < late_loss(losses) < HALVED * losses[0]:  # it falls
        return False
    if learnt_nothing(evidence):
        return True
    level = guessing(evidence)
    if level is not None and late_loss(losses) < _KNOWS * level:
        return False
    if is_creeping(evidence) and has_goal(evidence):
        return True
    return _stands_still(evidence) if level is None else no_better(evidence)


def is_creeping(evidence: Evidence) -> bool:
    """The weights of an optimizer hardly move."""
    return evidence.stats is not None and bool(evidence.stats.creeping)


def has_goal(evidence: Evidence) -> bool:
    """A lower loss is better: larger updates can be tried."""
    return has_one_goal(evidence) or lower_is_better(evidence)


def _stands_still(evidence: Evidence) -> bool:
    """One loss that one optimizer lowers, and which has come down by less than it varies. Neither
    that of a policy, which rewards weigh, nor a distance to what another network says."""
    if not has_one_goal(evidence):
        return False
    losses = evidence.losses
    quarter = losses[: len(losses) // 4]
    return len(losses) >= LONG_ENOUGH and abs(median(quarter) - late_loss(losses)) < stdev(quarter)


def has_one_goal(evidence: Evidence, *, frozen: bool = False) -> bool:
    """One optimizer lowers one loss, so that a lower one is better: neither that of a policy, which
    rewards weigh, nor a distance to what another network says. `frozen`: layers of the model may
    be."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    if calls is None or len(calls.losses) != 1 or len(evidence.optimizer_sites) != 1:
        return False
    behind = calls.behind(calls.calls[calls.losses[0]])[0]
    layers = [calls.calls[index] for index in behind if calls.calls[index].name in LAYERS]
    learn = frozen or all(layer.requires_grad for layer in layers)
    return learn and not is_weighed(calls) and _long_enough(evidence)


def learnt_nothing(evidence: Evidence) -> bool:
    """All losses of a finite run that may be long enough are as low with the targets of other
    samples."""
    seen = evidence.inspection
    known = seen is not None and seen.learnt_nothing and _long_enough(evidence)
    return known and has_fixed_targets(evidence)


def one_unlearnt(evidence: Evidence) -> bool:
    """One of the losses of such a run is, whose targets no network computes."""
    seen = evidence.inspection
    known = seen is not None and seen.unlearnt is not None and _long_enough(evidence)
    return known and has_fixed_targets(evidence)


def lower_is_better(evidence: Evidence) -> bool:
    """One optimizer lowers a finite loss, which compares with targets, or has come down by more
    than it varies: the losses of critics and policies need not."""
    seen, losses = evidence.inspection, evidence.losses
    if len(evidence.optimizer_sites) != 1 or seen is None or not _long_enough(evidence):
        return False
    quarter = len(losses) // 4
    varies = stdev(losses[-quarter:])
    return bool(seen.pairings) or median(losses[:quarter]) - late_loss(losses) > 2 * varies


def _long_enough(evidence: Evidence) -> bool:
    return len(evidence.losses) >= _SHORT and all(map(math.isfinite, evidence.losses))


def guessing(evidence: Evidence) -> float | None:
    """What guessing costs under a classification's mean loss; None for other losses."""
    found = mean_cross_entropy(evidence)
    if found is not None:
        return math.log(found[1])
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    if calls is None or len(calls.losses) != 1:
        return None
    loss = calls.calls[calls.losses[0]]
    mean = loss.reduction == "mean"
    return math.log(2) if mean and loss.name in BINARIES else None


def compared(evidence: Evidence) -> Sequence[float]:
    """The losses that are compared with those of smaller rates."""
    return evidence.losses[:COMPARED]


def slow_enough(evidence: Evidence, course: RerunFacts | None) -> Stretch | None:
    """The first stretch of smaller rates that ends far below the run itself."""
    return next(
        (
            stretch
            for stretch in (course.stretches if course is not None else ())
            if stretch.passes
            and stretch.last_loss is not None
            and enough_lower(evidence, stretch.last_loss, stretch.highest)
        ),
        None,
    )


def enough_lower(evidence: Evidence, smaller: float, highest: float | None) -> bool:
    """`far_lower`, of a late loss with learning rates of at most `highest`."""
    given, level = _holds_given(evidence, highest), guessing(evidence)
    return far_lower(compared(evidence), smaller, given=given, level=level)


def _holds_given(evidence: Evidence, highest: float | None) -> bool:
    """No schedule raises the rate above the one that was given."""
    return highest is not None and is_raised(evidence)


def far_lower(
    losses: Sequence[float],
    smaller: float,
    *,
    given: bool = False,
    level: float | None = None,
) -> bool:
    """A smaller rate's late loss `smaller` is far below the run's own: the run missed a third of
    the way down, or a fifth and ended twice as high, or a tenth and ended still higher, or climbed
    back up. A fifth is enough of the rate that the user has `given`, where a schedule had raised
    it. What guessing costs, the `level`, is where the way of a classification begins that began
    higher, and ended no lower."""
    late = late_loss(losses)
    if level is not None and losses[0] > late > level:
        return level - smaller >= _SHARE * level
    if given and late - smaller >= _SHARE_OF_GIVEN * (losses[0] - smaller) > 0:
        return True
    if smaller >= losses[0] or late < _LOWER * max(smaller, 0.0):
        return False
    lowest = climbed(losses)
    if lowest is not None and smaller < _LOWER * lowest and late > _LOWER * smaller:
        return True  # it stays where the run itself had been
    times = late / smaller if smaller > 0 else math.inf
    share = _SHARE
    if times >= 2:
        share = _SHARE_OF_MANY if times >= _MANY_TIMES else _SHARE_OF_TWICE
    return late - smaller >= share * (losses[0] - smaller)


def begins_sure(evidence: Evidence) -> float | None:
    """What guessing costs, in a run that may be compared and began at twice that and more: its
    first outputs were too large."""
    losses, level = evidence.losses, guessing(evidence)
    if level is None or len(losses) < SHORTEST or not all(map(math.isfinite, losses)):
        return None
    return level if losses[0] >= _SURE * level else None


def far_below(losses: Sequence[float], other: float, level: float) -> bool:
    """Another run's late loss `other` is far below the run's own; what comes before the `level` of
    guessing is no part of the way."""
    return late_loss(losses) - other >= _SHARE * (level - other) > 0


def warmup_length(rates: Sequence[float], given: float | None) -> int | None:
    """The number of steps of a warm-up that goes on: where the rate of every step, n from 0 or from
    1, is n / length of the rate that was `given`, and the length a whole number. None else. A
    training that sets its rates inside of its steps begins the first with the rate itself."""
    if given is None or given <= 0 or len(rates) < SHORTEST:
        return None
    for begin in (0, 1, 2):
        last = begin + len(rates) - 2
        length = round(last * given / rates[-1]) if rates[-1] > 0 else 0
        if length > last and all(
            math.isclose(rate, (begin + n) / length * given, rel_tol=_EXACT)
            for n, rate in enumerate(rates[1:])
        ):
            return length
    return None
