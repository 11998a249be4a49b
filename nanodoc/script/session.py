"""A script while it runs: asleep until it makes an optimizer, then searching for the loop that is
its training, then told of every iteration of that loop. The script drives; nothing of it is run in
another order."""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum, auto
from types import FrameType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.errors import UserCodeError
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.replay.closure_state import plain_state
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.sandbox import state_preserved
from nanodoc.replay.step_state import StateKeeper, StepState, copy_weights
from nanodoc.script.loops import BEGIN, EACH, LEFT, Loop, Loops
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import (
    Fingerprint,
    IterationStart,
    RecoveredStep,
    gradients_of,
    scalars_of,
    start_of,
)
from nanodoc.script.trained import Trained, what_is_trained


class ScriptEnded(BaseException):
    """Ends the script, since its training is sick or has made the steps that were asked for."""


class State(Enum):
    """What the session does."""

    ASLEEP = auto()
    SEARCHING = auto()
    FIRST = auto()
    """The loop is known, and its first step is not over."""
    WATCHING = auto()
    OVER = auto()


@dataclass(slots=True)
class Candidate:
    """An iteration that may be the training's, as it began."""

    start: IterationStart
    capsule: StepState
    trained: Trained
    backwards: int
    """Backward passes that had been made by then."""
    indices: list[int] | None
    fingerprints: list[Fingerprint] = field(default_factory=list)


class ScriptSession:
    """`make_engine` gets what is trained and its recovered step; `conclude` the engine and how the
    run ended, and makes the report of it right there, where the script stands. `steps`: after so
    many the script is ended."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        make_engine: Callable[[Trained, RecoveredStep], ScriptEngine],
        conclude: Callable[[ScriptEngine, Outcome], None],
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
        self._candidates: dict[int, Candidate] = {}
        self._first: Candidate | None = None
        self._keeper: StateKeeper | None = None
        self._trained: Trained | None = None
        self._backwards = 0
        self._losses: list[torch.Tensor] = []
        self._busy = False
        self._process = os.getpid()
        self.state = State.ASLEEP
        self.engine: ScriptEngine | None = None
        self.loop: Loop | None = None
        self.same: bool | None = None
        """The first step, run again, was bitwise the same; None where it was not run again."""
        self.steps = 0
        self.unseen: set[str] = set()
        """Loops that trained and were not watched, as file:line."""

    # -- in and out --------------------------------------------------------------------------------

    def install(self) -> None:
        """Puts marks and hooks in place; `close` takes them away."""
        session, marks = self, vars(builtins)
        marks[BEGIN] = lambda number: session._begin(number, sys._getframe(1))
        marks[LEFT] = self._leave
        marks[EACH] = self._each
        making, scaling = torch.optim.Optimizer.__init__, GradScaler.step
        original = torch.autograd.backward

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            making(optimizer, *args, **kwargs)
            session._wake()

        def scaled(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            session._stepping(optimizer, (), {})
            return scaling(scaler, optimizer, *args, **kwargs)

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            session._before_backward(tensors)
            return original(tensors, *args, **kwargs)

        torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign, assignment]  # put back in close
        GradScaler.step = scaled  # type: ignore[method-assign, assignment]  # put back in close
        torch.autograd.backward = backward
        hook = register_optimizer_step_pre_hook(self._stepping)
        self._outside.install()

        def put_back() -> None:
            hook.remove()
            torch.optim.Optimizer.__init__ = making  # type: ignore[method-assign]  # the original
            GradScaler.step = scaling  # type: ignore[method-assign]  # the original
            if torch.autograd.backward is backward:
                torch.autograd.backward = original
            self._outside.close()

        self._undo.append(put_back)
        os.register_at_fork(after_in_child=self._forked)

    def close(self) -> None:
        """Takes everything away; the marks stay, and do nothing."""
        self.state = State.OVER
        marks = vars(builtins)
        marks[BEGIN] = marks[LEFT] = _nothing
        marks[EACH] = _unchanged
        self._around.close()
        while self._undo:
            self._undo.pop()()
        self._candidates, self._first = {}, None

    def _forked(self) -> None:
        """A loader's worker trains nothing."""
        self.state = State.OVER

    def _each(self, values: Any) -> Any:
        return self._outside.each(values) if self.state is not State.OVER else values

    def _deaf(self) -> bool:
        return self._busy or self.state is State.OVER or threading.get_ident() != self._thread

    # -- the search --------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self.state is State.ASLEEP and not self._deaf():
            self.state = State.SEARCHING

    def _begin(self, number: int, frame: FrameType) -> None:
        """The mark at the start of an iteration."""
        if self.state is State.ASLEEP or self._deaf():
            return
        loop = self.loop
        if loop is not None and number != loop.number:
            return
        self._busy = True
        try:
            if loop is None:
                self._maybe(frame, self._loops.all[number])
            else:
                self._next(frame, loop)
        finally:
            self._busy = False

    def _maybe(self, frame: FrameType, loop: Loop) -> None:
        """Keeps what an iteration begins with, of a loop that may be the training's."""
        before = self._candidates.get(loop.number)
        if before is not None and self._trains_by_hand(before):
            # its weights are moved by no optimizer: from now on it is watched
            self.loop = loop
            self._open_engine(before.trained)
            self._next(frame, loop)
            return
        start = start_of(frame, loop, self._outside)
        trained, keeper = self._what_is_trained({**start.namespace, **start.variables})
        self._recovered.begin(start)  # the capsule keeps its attributes, too
        capsule = keeper.take(0, [start.batch], apart=True)
        parameters = list(trained.recipe.model.parameters())
        if any(p.grad is not None for p in parameters):
            capsule.grads = [
                None if p.grad is None else p.grad.detach().clone() for p in parameters
            ]
        indices = self._outside.indices_of([start.batch])
        self._candidates[loop.number] = Candidate(start, capsule, trained, self._backwards, indices)
        self._outside.sinks = [o.start.recorded for o in self._candidates.values()]

    def _trains_by_hand(self, before: Candidate) -> bool:
        return (
            not before.trained.recipe.optimizers
            and self._backwards > before.backwards
            and before.trained.moved()
        )

    def _what_is_trained(self, names: dict[str, Any]) -> tuple[Trained, StateKeeper]:
        known = self._trained
        if known is None or self._keeper is None or known.stale():
            known = self._trained = what_is_trained(names, self._recovered)
            self._keeper = StateKeeper(known.recipe, known.device)
            self._keeper.more_scalers = known.more_scalers
        return known, self._keeper

    def _before_backward(self, tensors: Any) -> None:
        if self.state in (State.WATCHING, State.OVER) or self._deaf():
            return
        self._wake()
        self._backwards += 1
        self._losses += scalars_of(tensors)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        if self._deaf():
            return
        if self.state is State.WATCHING:
            assert self.engine is not None
            if not self.engine.is_open:
                self._note_unseen(sys._getframe(1))
            return
        self._wake()
        self._busy = True
        try:
            if self._first is None:
                by_closure = "closure" in kwargs or len(args) > 1
                found = self._running(sys._getframe(1), by_closure)
                if found is None:
                    return
                self._chosen(found)
            assert self._first is not None
            self._first.fingerprints.append(Fingerprint(self._losses, gradients_of(optimizer)))
            self._losses = []
            if not self._first.fingerprints[-1].finite:
                self._begin_engine()
        finally:
            self._busy = False

    def _running(self, frame: FrameType | None, by_closure: bool) -> Candidate | None:
        """The innermost loop that runs and whose iteration has seen a backward pass; the loop
        around it, where that makes backward passes of its own."""
        found: Candidate | None = None
        while frame is not None:
            for loop in self._loops.running_in(frame):
                candidate = self._candidates.get(loop.number)
                if candidate is None or candidate.start.code is not frame.f_code:
                    continue
                if found is None:
                    if by_closure or self._backwards > candidate.backwards:
                        found = candidate
                elif loop.backward_outside(found.start.loop):
                    found = candidate
            frame = frame.f_back
        return found

    def _chosen(self, found: Candidate) -> None:
        """The loop is known; its weights have not moved since its iteration began."""
        self._first, self.loop, self.state = found, found.start.loop, State.FIRST
        recipe, capsule = found.trained.recipe, found.capsule
        capsule.weights = copy_weights(list(recipe.model.named_parameters()))
        capsule.optimizers = [copy_optimizer(optimizer) for optimizer in recipe.optimizers]
        self._candidates = {}
        self._outside.sinks = [found.start.recorded]

    # -- the steps ---------------------------------------------------------------------------------

    def _open_engine(self, trained: Trained) -> ScriptEngine:
        self.engine = engine = self._make_engine(trained, self._recovered)
        engine.keeper.more_scalers = trained.more_scalers
        self._around.enter_context(engine.watching())
        self.state = State.WATCHING
        return engine

    def _begin_engine(self) -> None:
        """Runs the first step again, under every watcher, compares the two, and goes on where the
        script stands."""
        first = self._first
        assert first is not None
        self._first = None
        recovered, limits = self._recovered, self._recovered.limits
        recovered.begin(first.start)
        engine = self._open_engine(first.trained)
        now = plain_state(value for _, _, value in recovered.reached_variables())
        limits.optimizer_steps = max(1, len(first.fingerprints))
        prints: list[Fingerprint] = []
        limits.fingerprints = prints
        ended: Stop | str | None = None
        try:
            with state_preserved(engine.runner, engine.keeper):
                ended = engine.first(first.capsule, first.indices)
        finally:
            limits.fingerprints = None
            for restore in now:
                restore()
        pairs = zip(first.fingerprints, prints, strict=False)
        self.same = len(prints) == len(first.fingerprints) and all(a.same_as(b) for a, b in pairs)
        if isinstance(ended, Stop):
            self._end(ended)
        self.steps = 1

    def _next(self, frame: FrameType, loop: Loop) -> None:
        """An iteration of the training begins; the one before is over."""
        if self.state is State.FIRST:
            self._begin_engine()
        engine = self.engine
        assert engine is not None
        self._close_step()
        if self._most is not None and self.steps >= self._most:
            self._end(Stop())
        start = start_of(frame, loop, self._outside)
        self._recovered.begin(start)
        self._outside.sinks = [start.recorded]
        batch = start.batch
        engine.open(
            self.steps,
            batch,
            self._outside.indices_of([batch]),
            self._outside.waited(),
            self._tripped,
        )

    def _leave(self, number: int) -> None:
        """The mark behind a loop."""
        if self.state is State.ASLEEP or self._deaf() or self.loop is None:
            return
        if number != self.loop.number:
            return
        self._busy = True
        try:
            if self.state is State.FIRST:
                self._begin_engine()
            else:
                self._close_step()
        finally:
            self._busy = False

    def _close_step(self) -> None:
        engine = self.engine
        if engine is None or not engine.is_open:
            return
        self._recovered.limits.optimizer_steps = max(1, engine.optimizer_steps)
        self._outside.sinks = []
        trouble = engine.close()
        if trouble is not None:
            self._end(trouble)
        self.steps += 1

    def _tripped(self) -> None:
        """The step is sick, and its optimizer has not moved the weights yet."""
        if self._deaf():
            return
        self._busy = True
        try:
            self._close_step()
        finally:
            self._busy = False

    def _note_unseen(self, frame: FrameType | None) -> None:
        while frame is not None:
            for loop in self._loops.running_in(frame):
                self.unseen.add(f"{loop.file}:{loop.line}")
                return
            frame = frame.f_back

    # -- the end -----------------------------------------------------------------------------------

    def _end(self, trouble: Stop) -> None:
        """The report, here and now, and the end of the script."""
        self.over(trouble)
        raise ScriptEnded

    def over(self, trouble: Stop) -> None:
        """The report of what was seen until now."""
        engine = self.engine
        self.state = State.OVER
        if engine is not None:
            steps = self.steps + (trouble.trip is not None)
            outcome = engine.conclude(trouble, steps, engine.sick)
            self._conclude(engine, outcome)

    def ended(self) -> None:
        """The script has come to its end."""
        if self.state is State.OVER:
            return
        self._busy = True
        if self.state is State.FIRST:
            self._begin_engine()
        self._close_step()
        self.over(Stop())

    def failed(self, error: BaseException) -> bool:
        """The script raised. False where it was no step of its training, and nothing is known of
        it."""
        if self.state in (State.OVER, State.ASLEEP):
            return self.state is State.OVER
        self._busy = True
        engine = self.engine
        in_step, in_batch = self._where(error)
        if self.state is State.WATCHING and engine is not None:
            phase = engine.runner._phase_of(error)
            if in_step and engine.is_open:
                self._recovered.limits.optimizer_steps = max(1, engine.optimizer_steps + 1)
                self.over(engine.failed(UserCodeError(error, phase)))
            else:
                told = UserCodeError(error, "data" if in_batch else phase)
                self.over(engine.failed_between(told, self.steps))
            return True
        candidate = self._first or self._failing(error)
        if candidate is None:
            return False
        if self._first is None:
            self._chosen(candidate)
        return self._fails_again(error)

    def _fails_again(self, error: BaseException) -> bool:
        """The first step, run again, raises the same."""
        try:
            self._begin_engine()
        except ScriptEnded:
            return True
        return False

    def _where(self, error: BaseException) -> tuple[bool, bool]:
        """(the error left the body of the training's loop, its header)"""
        trace = error.__traceback__
        while trace is not None and self.loop is not None:
            frame, line = trace.tb_frame, trace.tb_lineno
            if self.loop in self._loops.running_in(frame, line):
                return True, False
            if self._loops.headed_by(frame, line) is self.loop:
                return False, True
            trace = trace.tb_next
        return False, False

    def _failing(self, error: BaseException) -> Candidate | None:
        """The innermost loop that the error left, as its iteration began."""
        found: Candidate | None = None
        trace = error.__traceback__
        while trace is not None:
            for loop in self._loops.running_in(trace.tb_frame, trace.tb_lineno)[:1]:
                found = self._candidates.get(loop.number, found)
            trace = trace.tb_next
        return found


def _nothing(number: int) -> None:
    return None


def _unchanged(values: Any) -> Any:
    return values
