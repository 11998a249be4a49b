"""Which steps are looked at more closely, so that the looking stays below a share of the run's
time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

from nanodoc.measure.layers import LayerProbe, Sample
from nanodoc.replay.step_state import StepState
from nanodoc.watchers.watch import NOTHING, Watch

_SHARE_OF_TIME = 0.005
_FIRST = 1
"""Step 0 is traced as it is, and is not like the others."""
_SETTLED = 16
"""Where nobody asked, the first look comes when it is a small part of the steps so far: its cost is
not known before."""
_KEPT = 64
"""Samples; when there are more, every other one goes."""


class Sampler(Watch):
    """Told of every step; `samples` are there when the run has ended. With `every`, those steps are
    looked at whatever they cost. `hooks` tells whether modules may be given hooks now: they change
    what compiled and fused parts compute."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        *,
        every: int | None,
        hooks: Callable[[], bool],
        enabled: bool = True,
    ) -> None:
        super().__init__()
        self._model = model
        self._optimizers = optimizers
        self._every = every
        self._hooks = hooks
        self._enabled = enabled
        self._elapsed = 0.0
        self._spent = 0.0
        self._cost = 0.0
        self._probe: LayerProbe | None = None
        self.inside = self.behind = 0.0
        """Seconds that the last step's look took, while the step ran and after it."""
        self.samples: list[Sample] = []

    @property
    def may_hook(self) -> bool:
        """Hooks do not change what the training computes."""
        return self._hooks()

    def _due(self, step: int) -> bool:
        if not self._enabled:
            return False
        if step < _FIRST:
            return False
        if self._every is not None:
            return step == _FIRST or step % self._every == 0
        if self._cost == 0.0:
            return step >= _SETTLED
        return self._spent + self._cost <= _SHARE_OF_TIME * self._elapsed

    def around_step(self, start: StepState) -> contextlib.AbstractContextManager[None]:
        self.inside = self.behind = 0.0
        return self._looking(start.step) if self._due(start.step) else NOTHING

    @contextlib.contextmanager
    def _looking(self, step: int) -> Iterator[None]:
        began = time.perf_counter()
        self._probe = LayerProbe(self._model, self._optimizers, hooks=self.may_hook)
        self._cost = 0.0
        try:
            with self._probe.watching():
                self._cost += time.perf_counter() - began
                yield
        except BaseException:
            self._probe = None
            raise
        began = time.perf_counter()
        probe, self._probe = self._probe, None
        self.samples.append(probe.finish(step))
        if len(self.samples) > _KEPT:
            self.samples = self.samples[::2]
        self.behind = time.perf_counter() - began
        self.inside = self._cost + probe.seconds
        self._cost = self.inside + self.behind
        self._spent += self._cost

    @property
    def share(self) -> float:
        """Of the run's time so far, what the looks took."""
        whole = self._elapsed + self._spent
        return self._spent / whole if whole else 0.0

    @property
    def latest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def gradients(self) -> None:
        if self._probe is not None:
            began = time.perf_counter()
            self._probe.gradients()
            self._cost += time.perf_counter() - began

    def elapsed(self, seconds: float) -> None:
        """A step took so long without the look at it."""
        self._elapsed += seconds
