"""How far a command is, as told to whoever watches. Nothing here imports torch: the process that
watches never needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveMetrics:
    """A run's vital signs so far."""

    losses: Sequence[float]
    grad_norms: Sequence[float]
    rates: Sequence[float]
    update_ratios: Sequence[float]
    samples_per_second: float | None
    load_share: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a command tells how far it is: `step(step, steps, loss)` after each step, `say("trying
    float64 …")` while it examines."""

    step: Callable[[int, int, float], None] = lambda step, steps, loss: None
    say: Callable[[str], None] = lambda text: None
    live: Callable[[int, int, LiveMetrics], None] | None = None
    """`live(step, steps, vital signs so far)`, where somebody watches."""
