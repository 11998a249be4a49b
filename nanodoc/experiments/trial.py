"""A step, or a stretch of steps, run again with one thing changed, in the time that there is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.experiments.call_site import Applied, Patch
from nanodoc.looks.scheduler import Looks, OutOfTime, Place
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.rerun import Rerun, Rerunner
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import Replayer

T = TypeVar("T")

_ENOUGH = 5  # steps; of fewer, putting everything back takes most of the time


@dataclass(frozen=True, slots=True)
class Trial:
    """How the step went with one thing changed."""

    applied: bool
    """The change met something to change, and the program bore it."""
    healthy: bool
    """It raised nothing, and loss and gradients are finite."""
    loss: float | None
    seconds: float
    grad_norm: float = math.nan
    """Of the gradients that the step left behind."""
    error: str = ""
    """What the step raised, in one line."""
    raised: tuple[str, str, int] | None = None
    """The type of that exception, and file and line of the user's frame that it came from."""


class StepTrials:
    """Runs one recipe's steps again, in the time that the look at hand has. Everything is
    afterwards as it was."""

    def __init__(
        self, runner: StepRunner, keeper: StateKeeper, replayer: Replayer, looks: Looks
    ) -> None:
        self.runner = runner
        self.keeper = keeper
        self._replayer = replayer
        self._looks = looks
        self._courses = Rerunner(runner, keeper)
        self.raises = ""
        """The type of exception that the unchanged step ends in."""
        self._slowest = 0.0
        self._per_step: float | None = None
        """Seconds of a step of the last stretch that was run again."""

    @property
    def place(self) -> Place:
        """The time of the look at hand."""
        return self._looks.place

    @property
    def seconds(self) -> float:
        """What the slowest trial so far took; before the first, what a step of the run took."""
        return self._slowest or self._looks.step_seconds

    def in_time(
        self, work: Callable[[], T], otherwise: T, what: str = "", *, most: float = math.inf
    ) -> T:
        """What `work` comes to; `otherwise` where it takes more than `most` seconds, and where the
        look's time is over before: the report then names `what`."""
        place, own = self.place, self._looks.clock() + most
        until = min(self.runner.until, place.deadline, own)
        before, self.runner.until = self.runner.until, until
        try:
            return work()
        except OutOfTime:
            if until < own:
                place.leave(what)
            return otherwise
        finally:
            self.runner.until = before

    def course(
        self,
        start: StepState,
        steps: Sequence[PastStep],
        share: float,
        what: str,
        **change: Any,
    ) -> Rerun | None:
        """How a stretch of the run's past goes with a change (see `Rerunner.run`), in at most this
        share of the look's time; None where that is too short, and the report then names `what`."""
        place = self.place
        if self._per_step is None:  # the run's own steps may have been slower: it is tried
            needed = len(steps) * self._looks.step_seconds
        else:
            needed = len(steps) * self._per_step / share
        if not place.allows(needed, what):
            return None
        began = self._looks.clock()
        course = self._courses.run(start, steps, place.part(share), **change)
        if len(course.losses) >= _ENOUGH:
            self._per_step = (self._looks.clock() - began) / len(course.losses)
        if course.reason == "time":
            place.leave(what)
            return None
        return course

    def outcome(
        self, capsule: StepState, patch: Patch | None = None, applied: Applied | None = None
    ) -> Trial:
        """How one step goes, with a patch in place."""
        began = self._looks.clock()
        earlier = capsule.weights is not None
        with state_preserved(self.runner, self.keeper, moving=earlier):
            try:
                with patch or contextlib.nullcontext():
                    replay = self._replayer.replay(capsule, traced=False)
            except (UserCodeError, UsageError, RuntimeError) as error:
                # the change itself doesn't fit this program
                return Trial(
                    applied=False,
                    healthy=False,
                    loss=None,
                    seconds=self._looks.clock() - began,
                    error=one_line(error),
                )
        loss = sum(replay.losses) / len(replay.losses) if replay.losses else None
        ended = replay.error
        raised = type(ended.cause).__name__ if ended is not None else ""
        # an exception of its own means that the change broke the program
        fits = ended is None or raised == self.raises
        seconds = self._looks.clock() - began
        self._slowest = max(self._slowest, seconds)
        healthy = (
            ended is None and not replay.bad_parameters and loss is not None and math.isfinite(loss)
        )
        said, place = (one_line(ended), _place(ended)) if ended is not None else ("", None)
        return Trial(
            (applied is None or applied.yes) and fits,
            healthy,
            loss,
            seconds,
            replay.grad_norm,
            said,
            place,
        )


def fails(trial: Trial) -> bool:
    """The step failed as the unchanged one does; an exception of another kind (a part of a batch
    that doesn't fit together) says nothing."""
    return trial.applied and not trial.healthy


def _place(error: UserCodeError) -> tuple[str, str, int] | None:
    failure = describe_failure(error)
    return (
        (failure.type, failure.frames[-1].file, failure.frames[-1].line) if failure.frames else None
    )


Say = Callable[[str], None]


def one_line(error: BaseException) -> str:
    """An exception as one line of at most 120 characters."""
    inner = error.cause if isinstance(error, UserCodeError) else error
    text = " ".join(str(inner).split())
    return f"{type(inner).__name__}: {text}"[:120]
