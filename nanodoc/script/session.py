"""A script while it runs: asleep until it makes an optimizer, then searching for the loop that is
its training, then told of every iteration of that loop. The script drives; nothing of it is run in
another order."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.heartbeat.trail import here
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.script.fingerprint import Fingerprint, gradients_of
from nanodoc.script.first_step import run_again
from nanodoc.script.hooks import installed
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.marks import listen
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import (
    Changing,
    IterationStart,
    RecoveredStep,
    start_of,
)
from nanodoc.script.search import Candidate, Search
from nanodoc.script.states import ENDED, ScriptEnded, State, TrainingIsSick
from nanodoc.script.trained import Trained
from nanodoc.trace.optimizer_steps import Closure, around_closure

_SESSIONS: weakref.WeakSet[ScriptSession] = weakref.WeakSet()


def _forked() -> None:
    """A loader's worker trains nothing."""
    for session in list(_SESSIONS):
        session.state = State.OVER


os.register_at_fork(after_in_child=_forked)


class ScriptSession:
    """`make_engine` gets what is trained and its recovered step; `conclude` the engine and how the
    run ended, makes the report of it right there, where the script stands, and returns what the
    script is ended with. `steps`: after so many it is."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        make_engine: Callable[[Trained, RecoveredStep], ScriptEngine],
        conclude: Callable[[ScriptEngine, Outcome], BaseException],
        steps: int | None = None,
    ) -> None:
        self._loops = loops
        self._outside = outside
        self._make_engine = make_engine
        self._conclude = conclude
        self._most = steps
        self._recovered = RecoveredStep(outside)
        self._thread = threading.get_ident()
        self._around = ExitStack()
        self._undo: list[Callable[[], None]] = []
        self._search = Search(loops, outside, self._recovered)
        self._first: Candidate | None = None
        self._busy = False
        self._changing = Changing()
        self._start: IterationStart | None = None
        self._leaving: BaseException | None = None
        self.state = State.ASLEEP
        self.engine: ScriptEngine | None = None
        self.loop: Loop | None = None
        self.same: bool | None = None  # the first step, run again; None where it was not
        self.unsafe = ""  # what kept the first step from being run again
        self.steps = 0
        self.broken: Exception | None = None  # of nanodoc's own, which ended the watching
        self.unseen: set[str] = set()  # loops that trained and were not watched, as file:line

    # -- in and out --------------------------------------------------------------------------------

    def install(self) -> None:
        """Puts marks and hooks in place; `close` takes them away."""
        listen(self)
        self._undo.append(
            installed(
                made=self.made,
                stepping=self._stepping,
                by_scaler=lambda optimizer: self._stepping(optimizer, (), {}, by_scaler=True),
                backward=self._before_backward,
            )
        )
        self._outside.install()
        self._undo.append(self._outside.close)
        _SESSIONS.add(self)

    def close(self) -> None:
        """Takes everything away; the marks stay, and do nothing."""
        self.state = State.OVER
        listen(None)
        self._around.close()
        while self._undo:
            self._undo.pop()()
        self._search.close()
        self._first = None

    def each(self, values: Any) -> Any:
        return self._outside.each(values) if self.state is not State.OVER else values

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        """While nanodoc's own code runs: the marks and hooks that it meets are not the script's. An
        error of its own ends the watching, and the script goes on."""
        self._busy = True
        try:
            yield
        except TrainingIsSick:
            raise
        except Exception as error:
            if os.environ.get("NANODOC_DEBUG"):
                raise
            self.broken = error
            self.state = State.OVER
            with contextlib.suppress(Exception):
                if self.engine is not None:
                    self.engine.abandon()
                self._around.close()
        finally:
            self._busy = False

    def _deaf(self) -> bool:
        return self._busy or self.state is State.OVER or threading.get_ident() != self._thread

    # -- the search --------------------------------------------------------------------------------

    def made(self, made: Any) -> None:
        """There is an optimizer or a loss scaler."""
        self._search.made.note(made)
        if isinstance(made, torch.optim.Optimizer):
            self._wake()

    def _wake(self) -> None:
        if self.state is State.ASLEEP and not self._deaf():
            self.state = State.SEARCHING

    def begin(self, number: int, frame: FrameType, bound: Mapping[str, Any] | None = None) -> None:
        """The mark at the start of an iteration; `bound` are variables that the loop is about to
        bind."""
        if self.state is State.ASLEEP and self._loops.all[number].backwards:
            self._wake()
        if self.state is State.ASLEEP or self._deaf():
            return
        loop = self.loop
        if loop is not None and number != loop.number:
            return
        with self._ours():
            if loop is None:
                loop = self._loops.all[number]
                by_hand = self._search.begin(frame, loop, bound)
                if by_hand is not None:  # no optimizer moves its weights
                    self._choose(by_hand)
                    self._next(frame, loop, bound)
            else:
                self._next(frame, loop, bound)

    def _before_backward(self, tensors: Any) -> None:
        if self.state in (State.WATCHING, State.OVER) or self._deaf():
            return
        self._wake()
        self._search.before_backward(tensors)

    def _stepping(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any, *, by_scaler: bool = False
    ) -> Any:
        """An optimizer is about to step; `by_scaler`: unless its GradScaler leaves that out."""
        if self._deaf():
            return None
        self._search.made.note(optimizer)
        if self.state is State.WATCHING:
            assert self.engine is not None
            if not self.engine.is_open:
                unseen = self._loops.innermost(sys._getframe(1))
                self.unseen |= {f"{unseen.file}:{unseen.line}"} if unseen is not None else set()
            return None
        self._wake()
        frame, changed = sys._getframe(1), None
        with self._ours():
            if self._first is None:
                found = self._search.running(frame, "closure" in kwargs or len(args) > 1)
                if found is None:
                    return None
                self._choose(found)
            if by_scaler or self._first is None:
                return None
            self._first.optimizer_steps += 1
            changed = around_closure(args, kwargs, lambda closure: self._closed(optimizer, closure))
            if changed is None:
                self._gradients_complete(optimizer)
        return changed

    def _closed(self, optimizer: torch.optim.Optimizer, closure: Closure) -> Any:
        """The closure that the optimizer was given."""
        loss = closure()
        if self.state is State.FIRST and not self._deaf():
            with self._ours():
                self._gradients_complete(optimizer)
        return loss

    def _gradients_complete(self, optimizer: torch.optim.Optimizer) -> None:
        """Of the first step, as it ran: what it has to come to when it is run again."""
        assert self._first is not None
        seen = Fingerprint(self._search.losses, gradients_of(optimizer))
        self._first.fingerprints.append(seen)
        self._search.losses = []
        if not seen.finite or self._wants_first():
            self._begin_engine()

    def _wants_first(self) -> bool:
        """The first step is to be examined before its optimizer has stepped, healthy or not."""
        return False

    def _choose(self, found: Candidate) -> None:
        """The loop is known."""
        self._first, self.loop, self.state = found, found.start.loop, State.FIRST
        self._search.chosen(found)

    # -- the steps ---------------------------------------------------------------------------------

    def _open_engine(self, trained: Trained) -> ScriptEngine:
        self.engine = engine = self._make_engine(trained, self._recovered)
        engine.keeper.more_scalers = trained.more_scalers
        self._around.enter_context(engine.watching())
        self.state = State.WATCHING
        return engine

    def _begin_engine(self, error: BaseException | None = None) -> None:
        """Runs the first step again, under every watcher, compares the two, and goes on where the
        script stands. `error` is what it raised, if anything."""
        first = self._first
        assert first is not None
        self._first = None
        if not first.fingerprints:
            first.fingerprints.append(Fingerprint(self._search.losses, []))
        self._recovered.begin(first.start)
        engine = self._open_engine(first.trained)
        drawn = self._recovered.draws_unseen()
        if drawn is not None and error is None and first.finite:
            self.unsafe = f"{drawn}, an iterator that it draws from"
            return self._observe_only(first)
        again = run_again(first, engine, self._recovered, error)
        self.same, self.unsafe = again.same, again.unsafe
        if again.stop is not None and (again.same or again.is_true):
            self._end(again.stop)
        if again.ended_early:
            return self._observe_only(first)
        engine.replays = again.same
        self.steps = 1

    def _observe_only(self, first: Candidate) -> None:
        """The step can't be run again: it went well in the script, and not then."""
        self._around.close()
        self._open_engine(first.trained).replays = False

    def _next(self, frame: FrameType, loop: Loop, bound: Mapping[str, Any] | None) -> None:
        """An iteration of the training begins; the one before is over."""
        self._over_with_step()
        engine = self.engine
        assert engine is not None
        if self._most is not None and self.steps >= self._most:
            self._end(Stop())
        start = start_of(frame, loop, self._outside, self._changing, bound)
        self._recovered.begin(start)
        self._start = start
        self._outside.sinks = [start.recorded]
        engine.open(
            self.steps,
            start.batch,
            self._outside.indices_of([start.own_batch]),
            self._outside.waited(),
            self._tripped,
        )

    def leave(self, number: int, frame: FrameType | None = None) -> None:
        """The mark behind a loop, in `frame`. Where an exception leaves the loop, it is not known
        yet whether the script catches it."""
        if self.state is State.ASLEEP or self._deaf():
            return
        error = sys.exc_info()[1]
        if frame is not None and error is not None and error.__traceback__ is not None:
            trace = error.__traceback__
            inside = self._loops.running_in(frame, trace.tb_lineno)
            if trace.tb_frame is frame and self._loops.all[number] in inside:
                self._leaving = error if self._loops.all[number] is self.loop else None
                return
        if self.loop is None:
            self._search.left(number)
            return
        if number == self.loop.number:
            with self._ours():
                self._over_with_step()
                self._recovered.left.note(self._recovered)
                here().at(None, "script")

    def _over_with_step(self) -> None:
        if self.state is State.FIRST:
            self._begin_engine()
        self._close_step()

    def _close_step(self) -> None:
        engine = self.engine
        if engine is None or not engine.is_open:
            return
        # an exception left the step, and the script caught it; or the iteration did not train
        if self._leaving is not None or not engine.trained:
            self._leaving = None
            self._outside.sinks = []
            engine.abandon()
            return
        self._recovered.limits.optimizer_steps = max(1, engine.optimizer_steps)
        self._outside.sinks = []
        self._changing.learn(self._start)
        trouble = engine.close()
        if trouble is not None:
            self._end(trouble)
        self.steps += 1

    def _tripped(self) -> None:
        """The step is sick, and its optimizer has not moved the weights yet."""
        if self._deaf():
            return
        with self._ours():
            self._close_step()

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, trouble: Stop) -> None:
        """The report, here and now, and the end of the script."""
        raise self.over(trouble)

    def over(self, trouble: Stop) -> BaseException:
        """The report of what was seen until now; what the training is to be ended with."""
        engine = self.engine
        self.state = State.OVER
        if engine is not None:
            steps = self.steps + (trouble.trip is not None)
            outcome = engine.conclude(trouble, steps, engine.sick)
            return self._conclude(engine, outcome)
        return ScriptEnded()

    def ended(self) -> None:
        """The script has come to its end."""
        if self.state is State.OVER:
            return
        with self._ours(), self._recovered.left.again(self._recovered):
            self._over_with_step()
            self.over(Stop())

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
        in_step = in_step and self._leaving is error
        if self.state is State.WATCHING and engine is not None:
            phase = engine.runner._phase_of(error)
            if in_step and engine.is_open:
                self._recovered.limits.optimizer_steps = max(1, engine.optimizer_steps + 1)
                self.over(engine.failed(UserCodeError(error, phase)))
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
