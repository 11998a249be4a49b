"""A run whose training may leave out a sick step, which then is none of its faults."""

from __future__ import annotations

from dataclasses import replace

from nanodoc.loop.left_step import LeftStep, left_step
from nanodoc.loop.step_reading import StepReading
from nanodoc.loop.stop import Stop
from nanodoc.loop.watched_run import WatchedRun
from nanodoc.replay.step_state import StepState


class LeavingRun(WatchedRun):
    """Where iterations begin with the optimizer's step of the one before them, whether a sick one
    is left out shows in the next."""

    left: LeftStep | None = None
    """A sick step that no optimizer has stepped with, since the last one that went well."""

    def _run_step(self, capsule: StepState, began: float) -> Stop | None:
        reading = self._driver.run(capsule, self._compute)
        stop = self._judged(*self._to_judge(capsule, reading), began)
        if stop is None and self.left is not None and self.left.ends:
            stop = self._judged(*self._back_to_left(self.left), began)
        return stop

    def _to_judge(self, capsule: StepState, reading: StepReading) -> tuple[StepState, StepReading]:
        """The step that the run ends with, if `reading`, of the one that began with `capsule`,
        shows that it does; else that one, well or left out."""
        left, self.left = self.left, None
        left = left if left is not None and left.told is not None else None
        if reading.stepped_sick and left is not None:
            return self._back_to_left(left)
        if reading.unstepped:
            if left is None:
                loss = reading.vitals.loss
                left = left_step(capsule, self.recipe, self._named, loss, self._indices)
                left.told, left.skipped = reading, self.course.skipped
            else:
                left.times += 1
            reading = replace(reading, tripped=None, left_out=True)
        if self._driver.left_sick:
            self.left = left
        return capsule, reading

    def _back_to_left(self, left: LeftStep) -> tuple[StepState, StepReading]:
        """The run ends with it."""
        if left.told is not None:
            self.course.skipped = left.skipped
        return self._back_to(left)
