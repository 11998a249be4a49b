"""One step run again with one thing changed, and how much time that may take."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.experiments.call_site import Applied, Patch
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.time_limit import OutOfTime
from nanodoc.replay.traced_replay import Replayer

DEFAULT_BUDGET = 60.0  # seconds

T = TypeVar("T")


class Budget:
    """The time that the whole examination may take. It began when the run was over (`began`, in
    seconds of `time.monotonic`), or begins with the first question asked of it."""

    def __init__(self, seconds: float = DEFAULT_BUDGET, began: float | None = None) -> None:
        self.seconds = seconds
        self._began = began

    @property
    def deadline(self) -> float:
        """As `time.monotonic` counts."""
        if self._began is None:
            self._began = time.monotonic()
        return self._began + self.seconds

    def allows(self, seconds: float = 0.0) -> bool:
        """Whether something that takes this long still fits."""
        return time.monotonic() + seconds <= self.deadline

    def part(self, share: float) -> float:
        """The moment when this share of what is left will be over."""
        return time.monotonic() + share * max(self.deadline - time.monotonic(), 0.0)


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
    """Runs one recipe's steps again. Everything is afterwards as it was."""

    def __init__(
        self, runner: StepRunner, keeper: StateKeeper, replayer: Replayer, budget: Budget
    ) -> None:
        self.runner = runner
        self.keeper = keeper
        self._replayer = replayer
        self.budget = budget
        self.raises = ""
        """The type of exception that the unchanged step ends in."""
        self.seconds = 0.0
        """What the slowest trial so far took."""

    def in_time(self, work: Callable[[], T], otherwise: T) -> T:
        """What `work` comes to; `otherwise` where the time for the examination is up before."""
        before, self.runner.until = self.runner.until, min(self.runner.until, self.budget.deadline)
        try:
            return work()
        except OutOfTime:
            return otherwise
        finally:
            self.runner.until = before

    def outcome(
        self, capsule: StepState, patch: Patch | None = None, applied: Applied | None = None
    ) -> Trial:
        """How one step goes, with a patch in place."""
        began = time.perf_counter()
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
                    seconds=time.perf_counter() - began,
                    error=one_line(error),
                )
        loss = sum(replay.losses) / len(replay.losses) if replay.losses else None
        ended = replay.error
        raised = type(ended.cause).__name__ if ended is not None else ""
        # an exception of its own means that the change broke the program
        fits = ended is None or raised == self.raises
        seconds = time.perf_counter() - began
        self.seconds = max(self.seconds, seconds)
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
