"""Which discounted sums of an episode's rewards a list of weights is, up to a shift and a scale.

Source: Sutton & Barto 2018, Reinforcement Learning, section 3.3: the return of step t is the sum
over k of discount^k · reward[t + k]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_EXACT = 1e-6
"""Of the variance that a fit may leave: the rounding of float32, and nothing else."""
_ROUNDED = 1e-4  # of the same, of differences of what is nearly equal
_UNSHIFTED = 1e-4  # of the largest weight
_DISCOUNTS = (*(0.5 + 0.02 * i for i in range(20)), *(0.9 + 0.002 * i for i in range(50)), 1.0)
_FAR = 0.01  # no discount between two of the grid leaves a thousandth of what they leave
_HALVINGS = 40
_GOLDEN = 0.6180339887498949
TO_GO, SO_FAR, REVERSED = "to-go", "so-far", "reversed"
SO_FAR_REVERSED = "so-far-reversed"


@dataclass(frozen=True, slots=True)
class Order:
    """What the weights are sums of, as `ReturnFacts` has it."""

    order: str
    rising: bool
    discount: float


@dataclass(frozen=True, slots=True)
class _Fit:
    """weights ≈ scale · sums + shift"""

    left: float
    """Share of the variance of the weights that is left."""
    scale: float
    shift: float
    discount: float


def order_of(weights: Sequence[float], rewards: Sequence[float]) -> Order | None:
    """None where the weights are no discounted sums of the rewards, or the rewards themselves. With
    equal rewards and a shift, falling sums to go and rising sums so far may be the same: the sums
    so far are then told."""
    if len(weights) != len(rewards) or not all(map(math.isfinite, (*weights, *rewards))):
        return None
    if not _varies(weights) or not any(rewards):
        return None
    if _varies(rewards) and _fitted(weights, rewards, 0.0).left < _EXACT:
        return None
    to_go = _best(weights, rewards, TO_GO)
    if to_go.left < _EXACT and to_go.scale > 0:
        return Order(TO_GO, True, to_go.discount)
    largest = max(abs(weight) for weight in weights)
    if to_go.left < _EXACT and abs(to_go.shift) < _UNSHIFTED * largest:
        return Order(TO_GO, False, to_go.discount)
    for order in (SO_FAR, REVERSED, SO_FAR_REVERSED):
        fit = _best(weights, rewards, order)
        if fit.left < _EXACT and fit.scale > 0:
            return Order(order, True, fit.discount)
    # of any list with one other number at its end: its name has to tell
    return Order(TO_GO, False, to_go.discount) if to_go.left < _EXACT else None


def same_way(weights: Sequence[float], values: Sequence[float]) -> bool | None:
    """Whether the weights are these values, scaled and shifted; False where the scale is negative,
    None where they are not."""
    if len(weights) != len(values) or not all(map(math.isfinite, (*weights, *values))):
        return None
    if not _varies(weights) or not _varies(values):
        return None
    fit = _fitted(weights, values, 0.0)
    return fit.scale > 0 if fit.left < _ROUNDED else None


def sums(rewards: Sequence[float], discount: float, order: str) -> list[float]:
    """The discounted sums of the rewards, one for each."""
    found, total = [], 0.0
    for reward in rewards if order in (SO_FAR, SO_FAR_REVERSED) else reversed(rewards):
        total = reward + discount * total
        found.append(total)
    return found[::-1] if order in (TO_GO, SO_FAR_REVERSED) else found


def _best(weights: Sequence[float], rewards: Sequence[float], order: str) -> _Fit:
    """With the discount that leaves least: from a grid, then by golden sections."""

    def fit(discount: float) -> _Fit:
        return _fitted(weights, sums(rewards, discount, order), discount)

    tried = [fit(discount) for discount in _DISCOUNTS]
    at = min(range(len(tried)), key=lambda number: tried[number].left)
    if tried[at].left < _EXACT * _EXACT or tried[at].left > _FAR:
        return tried[at]
    low, high = _DISCOUNTS[max(at - 1, 0)], _DISCOUNTS[min(at + 1, len(tried) - 1)]
    best = tried[at]
    for _ in range(_HALVINGS):
        left, right = fit(high - _GOLDEN * (high - low)), fit(low + _GOLDEN * (high - low))
        best = min(best, left, right, key=lambda each: each.left)
        low, high = (low, right.discount) if left.left < right.left else (left.discount, high)
    return best


def _fitted(weights: Sequence[float], values: Sequence[float], discount: float) -> _Fit:
    """By least squares."""
    count = len(weights)
    mean, middle = sum(weights) / count, sum(values) / count
    spread = sum((value - middle) ** 2 for value in values)
    all_of_it = sum((weight - mean) ** 2 for weight in weights)
    if not spread:
        return _Fit(1.0, 0.0, mean, discount)
    both = zip(weights, values, strict=True)
    scale = sum((weight - mean) * (value - middle) for weight, value in both) / spread
    return _Fit(
        max(0.0, 1.0 - scale * scale * spread / all_of_it),
        scale,
        mean - scale * middle,
        discount,
    )


def _varies(values: Sequence[float]) -> bool:
    return max(values) - min(values) > 1e-6 * max(abs(value) for value in values)
