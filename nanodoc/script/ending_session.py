"""How a watched training ends: by itself, by an exception, by a signal, or since the script leaves
it for a loss that is not finite."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from traceback import walk_tb
from types import FrameType

from nanodoc.errors import UserCodeError
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.outside import Outside
from nanodoc.script.search import Candidate
from nanodoc.script.search_session import SearchSession
from nanodoc.script.states import ENDED, ScriptEnded, State
from nanodoc.script.unused_loss import sick_loss_in
from nanodoc.tensors.plain import local_of


class EndingSession(SearchSession):
    """`conclude` gets the engine and how the run ended, makes the report of it right there, where
    the script stands, and returns what the script is ended with."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        conclude: Callable[[ScriptEngine, Outcome], BaseException],
        wanted: Callable[[Loop], bool] | None = None,
    ) -> None:
        super().__init__(loops, outside, wanted)
        self._conclude = conclude
        self._leaving: int | None = None
        """The exception, by identity, that left the step's loop."""
        self.engine: ScriptEngine | None = None
        self.steps = 0

    @abstractmethod
    def _begin_engine(self, error: BaseException | None = None) -> None:
        """The first step is over, or has raised."""

    @abstractmethod
    def _over_with_step(self, frame: FrameType | None = None, *, gone: bool = False) -> None:
        """The step that may be open is over; `frame` is that of the loop, if it is known. `gone`:
        the loop was broken off."""

    @abstractmethod
    def _sick_first(self, first: Candidate, loss: float, *, used: bool = False) -> None:
        """The first step was left for its loss, and the run ends with it. `used`: the loss was
        differentiated, and the step after it has begun to step with its gradients."""

    @abstractmethod
    def _look_whole(self, running: Iterable[FrameType]) -> None:
        """The open step, watched by its losses alone in one of these frames, is about to be run
        again."""

    def _leaves_step(self, engine: ScriptEngine, frame: FrameType | None, *, gone: bool) -> bool:
        """The open step did not train, or its loop is `gone`, broken off in `frame` before an
        optimizer stepped: whether that was for its loss."""
        if frame is None or self.loop is None:
            return False
        loss = sick_loss_in(frame, self.loop, self._since)
        if loss is None:
            return False
        if engine.is_brief:
            self._look_whole([frame])
        engine.set_aside(float(local_of(loss.detach())), gone=gone)
        # of several ranks all see it now, and may leave their group next
        at_once = engine.lockstep.enabled or (engine.left is not None and not engine.left.gone)
        if at_once and (sick := self._ended_by_left()) is not None:
            self._end(sick)
        return True

    def _left_at_first(self, number: int, frame: FrameType | None) -> None:
        """A loop that would train is left, for its loss, before any optimizer has stepped."""
        first, loss = self._left_for_its_loss(number, frame)
        if first is not None:
            with self._ours():
                self._first, self.loop = None, first.start.loop
                self._search.chosen(first)
                self._sick_first(first, loss)

    def _ended_at_first(self, frame: FrameType | None) -> bool:
        """The first step, which begins with the optimizer's step of an unwatched one, was left for
        its loss."""
        first = self._first
        if first is None or frame is None or not first.steps_first or self._search.losses:
            return False
        loss = sick_loss_in(frame, first.start.loop, self._since)
        if loss is None:
            return False
        self._first = None
        self._recovered.limits.optimizer_steps = first.optimizer_steps + 1
        self._sick_first(first, float(local_of(loss.detach())))
        return True

    def broken_off(self, frame: FrameType) -> None:
        """What is around the loop is left, in `frame`, where no mark stands behind the loop: the
        step that is open did not come to its end."""
        if self.state is State.WATCHING and not self._deaf():
            with self._ours():
                self._over_with_step(frame, gone=True)

    def _ended_by_left(self) -> Stop | None:
        """What ended the training, where its last steps were left for their losses."""
        engine = self.engine
        if engine is None or engine.left is None or not engine.left.ends:
            return None
        self._recovered.limits.unused = engine.left.told is None
        return engine.ended_by_left()

    def _end(self, trouble: Stop) -> None:
        """The report, here and now, and the end of the script."""
        raise self.over(trouble)

    def over(self, trouble: Stop) -> BaseException:
        """The report of what was seen until now; what the training is to be ended with."""
        engine = self.engine
        self.state = State.OVER
        if engine is not None:
            # a step before the last one may be what was sick
            steps = self.steps if trouble.trip is None else trouble.trip.step + 1
            outcome = engine.conclude(trouble, steps, engine.sick)
            return self._conclude(engine, outcome)
        return ScriptEnded()

    def ended(self) -> None:
        """The script has come to its end."""
        if self.state is State.OVER:
            return
        with self._ours(), self._recovered.left.again(self._recovered):
            self._over_with_step()
            self.over(self._ended_by_left() or Stop())

    def told_to_end(self) -> BaseException | None:
        """The process is about to be ended. What the script is to be left with; None where nothing
        was seen of it, or this is no moment for a report: where nanodoc's own code runs, the
        report is made when that is over."""
        engine = self.engine
        if engine is None or self._deaf():
            self._asked_to_end = self._busy
            return None
        with self._ours():
            engine.abandon()
            engine.ask_to_end()
            return self.over(Stop())
        return None

    def _gone_on(self) -> None:
        if not self._asked_to_end:
            return
        self._asked_to_end = False
        if (end := self.told_to_end()) is not None:
            raise end

    def failed(self, error: BaseException) -> bool:
        """The script raised. False where nothing is known of it: it was no step of a training."""
        known = self.state is State.OVER
        if self.state not in (State.OVER, State.ASLEEP):
            with self._ours():
                known = self._judged_failure(error)
        return known

    def _judged_failure(self, error: BaseException) -> bool:
        engine = self.engine
        in_step, in_batch = self._search.left_by(self.loop, error.__traceback__)
        in_step = in_step and self._leaving == id(error)
        if self.state is State.WATCHING and engine is not None:
            phase = engine.runner.phase_of(error)
            if in_step and engine.is_open:
                self._look_whole(each for each, _ in walk_tb(error.__traceback__))
                self._recovered.limits.optimizer_steps = max(1, engine.optimizer_steps + 1)
                self.over(engine.failed(UserCodeError(error, phase)))
            elif (left := self._ended_by_left()) is not None:  # and raised behind its loop
                self.over(left)
            else:
                told = UserCodeError(error, "data" if in_batch else "script")
                self.over(engine.failed_between(told, self.steps))
            return True
        candidate = self._first or self._search.failing(error.__traceback__)
        if candidate is None:
            return False
        if self._first is None:
            self._choose(candidate)
        try:
            self._begin_engine(error)
        except ENDED:  # it raises the same when it is run again
            return True
        return False
