"""The steps of a script that are watched by their losses alone, which most are: what happens at
each of them, in as few calls as can be (see `loop.briefly_watched`)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch

from nanodoc.instrument.frames import caller
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.script.ending_session import EndingSession
from nanodoc.script.glance import Glance, Glances, start_at
from nanodoc.script.iteration import Changing, IterationStart
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.outside import Outside
from nanodoc.script.states import State
from nanodoc.script.succession import Succession, Successor
from nanodoc.script.unused_loss import graph_position


class BriefSession(EndingSession):
    """`conclude` as in `EndingSession`. `steps`: after so many the script is ended."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        conclude: Callable[[ScriptEngine, Outcome], BaseException],
        wanted: Callable[[Loop], bool] | None = None,
        steps: int | None = None,
    ) -> None:
        super().__init__(loops, outside, conclude, wanted)
        self._most = steps
        self._succession = Succession(loops)
        self._pending: Successor | None = None
        self._changing = Changing()
        self._start: IterationStart | None = None
        """Of the last iteration that was watched in full."""
        self._glance: Glance | None = None
        """Of the last one, if that was not."""
        self._glances: Glances | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        """Those of the training that is watched."""

    @abstractmethod
    def _close_step(self, frame: FrameType | None = None, *, gone: bool = False) -> None:
        """As `_over_with_step`, of a step that is not the first."""

    def _wants_turns(self, loop: Loop) -> bool:
        engine = self.engine
        return super()._wants_turns(loop) or (engine is not None and engine.moved_elsewhere)

    def begin(self, number: int, frame: FrameType, bound: Mapping[str, Any] | None = None) -> None:
        """As of `SearchSession`."""
        if (
            self._glance is None
            or self.loop is None
            or number != self.loop.number
            or self._pending is not None
            or self._busy
            or self.state is State.OVER
            or get_ident() != self._thread
            or not self._in_ours(self._next_briefly, frame, bound)
        ):
            super().begin(number, frame, bound)

    def _stepping(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any, *, by_scaler: bool = False
    ) -> Any:
        seen = self.engine.glance if self.engine is not None else None
        deaf = self._busy or self.state is State.OVER or get_ident() != self._thread
        if seen is not None and not by_scaler and not deaf:
            for known in self._optimizers:
                if known is optimizer:
                    self._outside.trains()
                    self._succession.own = True
                    if self._in_ours(seen.stepping, optimizer) is False:
                        self._in_ours(self._sick_briefly, caller())
                    return None
        return super()._stepping(optimizer, args, kwargs, by_scaler=by_scaler)

    def _glance_at(
        self, frame: FrameType, bound: Mapping[str, Any] | None, step: int
    ) -> Glance | None:
        """Where the step that begins is to be watched by its losses alone, and looks as the last
        one did that was watched in full."""
        full = self._start
        if self.engine is None or full is None or not self.engine.brief.wants(step):
            return None
        if self._glances is None or self._glances.full is not full:
            self._glances = Glances(full)
        return self._glances.at(frame, bound)

    def _next_briefly(self, frame: FrameType, bound: Mapping[str, Any] | None) -> bool:
        """An iteration begins. Where the one before is watched by its losses alone and went as most
        do, and this one is to be watched so, too: all that `_next` does then. False otherwise, and
        nothing is done."""
        engine, step = self.engine, self.steps + 1
        seen = engine.glance if engine is not None else None
        if (
            engine is None
            or seen is None
            or seen.optimizer_steps != self._recovered.limits.optimizer_steps
            or not seen.losses
            or not math.isfinite(loss := seen.loss)
            or self._leaving is not None
            or step == self._most
            or self._succession.strange
            or (glance := self._glance_at(frame, bound, step)) is None
        ):
            return False
        self._at_end, self._since = None, graph_position()
        self._succession.iteration()
        batch, numbers, recorded = glance.own_batch, glance.numbers, glance.recorded
        indices, waited = self._outside.begin_step(batch, recorded)
        engine.next_briefly(loss, step, batch, indices, waited, numbers, recorded)
        self._glance, self.steps = glance, step
        return True

    def _sick_briefly(self, frame: FrameType) -> None:
        """An optimizer, called in `frame`, is about to step in a step that is watched by its losses
        alone, and one of them is not finite."""
        if not self._succession.of_another_model:
            self._look_whole(each for each, _ in walk_stack(frame))
            self._close_step()

    def _look_whole(self, running: Iterable[FrameType]) -> None:
        """The open step, watched by its losses alone in one of these frames, is about to be run
        again."""
        glance, full = self._glance, self._start
        if glance is not None and full is not None:
            start = start_at(glance, full, running, self._outside, self._changing)
            self._recovered.begin(start)
