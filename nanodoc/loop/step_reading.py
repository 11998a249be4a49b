"""What one step told: its vital signs, and why it is no healthy one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from nanodoc.facts.amp import ScalerStep
from nanodoc.measure.gradients import Vitals
from nanodoc.watch.watch import Watch


@dataclass(slots=True)
class StepReading:
    """`tripped` are the vital signs that are not healthy, None of a healthy step."""

    vitals: Vitals
    scaler: ScalerStep | None = None
    norms: Mapping[str, float] = field(default_factory=dict)
    """Gradient norms by parameter, for those that have a gradient."""
    tripped: Vitals | None = None
    bad_parameters: list[str] = field(default_factory=list)
    told: float | None = None
    """The loss as a replay counts it, where that is another than the vitals'."""
    left_out: bool = False
    """The training code itself decided not to step."""
    own_seconds: float = 0.0
    """Seconds that were not the training's own."""


class Scalars:
    """The watchers' scalars, read with the vitals in one copy."""

    def __init__(self, watches: Sequence[Watch]) -> None:
        self._watches = watches
        self._places: dict[int, slice] = {}

    def collect(self, *, done: bool = False) -> list[torch.Tensor]:
        """All of them, one watcher after the other."""
        found: list[torch.Tensor] = []
        for watch in self._watches:
            own = watch.scalars(done=done)
            self._places[id(watch)] = slice(len(found), len(found) + len(own))
            found += own
        return found

    def of(self, watch: Watch, values: tuple[float, ...]) -> tuple[float, ...]:
        """Those of one watcher, among the values that were read."""
        return values[self._places.get(id(watch), slice(0, 0))]
