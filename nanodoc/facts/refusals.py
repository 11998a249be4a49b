"""Exceptions by which torch refuses values that are out of a range: told by their messages."""

from __future__ import annotations

import math
import re

from nanodoc.facts.failure import Failure

_NUMBER = r"(-?(?:[\d.]+(?:e[+-]?\d+)?|inf))"
_BETWEEN_0_AND_1 = re.compile(
    r"all elements of (?:input|target) should be between 0 and 1|Expected p_in >= 0 && p_in <= 1"
)
_NOT_NEGATIVE = re.compile(
    r"probability tensor contains either|expects all elements of std >= 0|invalid Poisson rate"
    r"|invalid multinomial distribution"
)
_INTERVAL = re.compile(
    rf"(Integer)?Interval\(lower_bound={_NUMBER}, upper_bound={_NUMBER}\)", re.IGNORECASE
)
_ABOVE = re.compile(rf"(Integer)?GreaterThan(Eq)?\(lower_bound={_NUMBER}\)")


def refused(failure: Failure) -> tuple[float, float, bool] | None:
    """(smallest, largest, only integers) of the values that a function would have taken; None where
    the exception is about something else. A bound that is not taken itself is moved to the next
    number."""
    message = failure.message
    if _BETWEEN_0_AND_1.search(message) is not None:
        return 0.0, 1.0, False
    if _NOT_NEGATIVE.search(message) is not None:
        return 0.0, math.inf, False
    if (told := _INTERVAL.search(message)) is not None:
        return float(told[2]), float(told[3]), told[1] is not None
    if (told := _ABOVE.search(message)) is not None:
        low = float(told[3])
        return low if told[2] else math.nextafter(low, math.inf), math.inf, told[1] is not None
    return None
