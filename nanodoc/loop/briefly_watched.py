"""A script's step that is open and watched by its losses alone. Most steps are, so all is done in
as few calls as can be: behind the kernels of a step every function runs with cold caches, and takes
several times what it takes in a loop of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nanodoc.heartbeat import trail
from nanodoc.loop.shared_run import SharedRun
from nanodoc.loop.stop import Stop
from nanodoc.replay.observer import LossObserver
from nanodoc.replay.step_state import BriefStep


class BrieflyWatched(SharedRun):
    """The part of `ScriptEngine` that watches such steps."""

    glance: LossObserver | None = None
    """What is seen of the open step, where that is watched by its losses alone."""
    _brief: BriefStep | None = None
    """Its start."""

    def open_briefly(
        self,
        step: int,
        batch: Any,
        indices: Sequence[int] | None,
        waited: float,
        numbers: Mapping[str, Any],
        drawn: Any,
    ) -> None:
        """The script begins a step that is watched by its losses alone. `numbers` and `drawn` as
        those of its `StepState`."""
        trail.current.at(step, "forward")
        self.glance = LossObserver().open()
        self.amp.calls.begin_briefly()
        self._begin_briefly(step, batch, indices, waited, numbers, drawn)

    def _begin_briefly(
        self,
        step: int,
        batch: Any,
        indices: Sequence[int] | None,
        waited: float,
        numbers: Mapping[str, Any],
        drawn: Any,
    ) -> None:
        self._indices = indices
        self.learning.waits.append(waited)
        start = self._brief = self.keeper.take_briefly(step, [batch])
        self.brief.begin(start)
        start.indices, start.numbers, start.drawn = indices, numbers, drawn
        start.cleared = self.checkpoints.cleared
        self._began = time.perf_counter()

    def next_briefly(
        self,
        loss: float,
        step: int,
        batch: Any,
        indices: Sequence[int] | None,
        waited: float,
        numbers: Mapping[str, Any],
        drawn: Any,
    ) -> None:
        """The open step, which is watched by its losses alone, had this loss, which is finite, and
        its optimizer has stepped; the next one is watched so, too. What `close` and `open_briefly`
        do, whose arguments the others are."""
        seen, start, seconds = self.glance, self._brief, time.perf_counter() - self._began
        assert seen is not None
        assert start is not None
        self.left = None
        self.amp.calls.loop_protocol.ever_stepped += seen.optimizer_steps
        start.rates = seen.rates
        self.course.brief_step(start, loss, seconds)
        trail.current.next(step, loss, self.course.grad_norms[-1])
        if self._progress is not None:
            self._progress(step - 1, loss)
        seen.begin()
        self._begin_briefly(step, batch, indices, waited, numbers, drawn)

    @property
    def is_brief(self) -> bool:
        """The open step is watched by its losses alone."""
        return self.glance is not None

    def _close_briefly(self) -> Stop | None:
        glance, start = self._left_brief()
        loss, stepped = glance.loss, glance.optimizer_steps
        if not math.isfinite(loss) and stepped:
            return self._sick_briefly(start, loss)
        # the loop left a bad batch out, or does something else
        if not (stepped and glance.differentiated):
            self.brief.give_up()
        seconds = time.perf_counter() - self._began
        start.rates = glance.rates
        self._finished_briefly(start, loss, seconds)
        return None

    def _left_brief(self) -> tuple[LossObserver, BriefStep]:
        glance, start = self.glance, self._brief
        assert glance is not None
        assert start is not None
        self.glance = self._brief = None
        glance.close()
        self.amp.calls.end_briefly(glance.optimizer_steps)
        return glance, start
