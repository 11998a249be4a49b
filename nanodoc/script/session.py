"""A script while it runs: asleep until it makes an optimizer, then searching for the loop that is
its training, then told of every iteration of that loop. The script drives; nothing of it is run in
another order."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any

import torch

from nanodoc.heartbeat.trail import here
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.loop.stop import Stop
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.replay.whole_state import WholeState
from nanodoc.script.brief_session import BriefSession
from nanodoc.script.fingerprint import Fingerprint
from nanodoc.script.first_step import RunAgain, as_it_ran, run_again, steps_come_to_the_same
from nanodoc.script.iteration import Changing, IterationStart, start_of
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.script.states import State
from nanodoc.script.succession import Successor, end_of_training
from nanodoc.script.trained import Trained
from nanodoc.tensors.plain import local_of
from nanodoc.trace.spans import Place, codes_above


class ScriptSession(BriefSession):
    """`make_engine` gets what is trained and its recovered step; `conclude` as in `EndingSession`.
    `steps`: after so many the script is ended. `successor` makes the session of the next
    training, in the place of this one; `wanted` says whether a loop may be the step's,
    where that is known."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        make_engine: Callable[[Trained, RecoveredStep], ScriptEngine],
        conclude: Callable[[ScriptEngine, Outcome], BaseException],
        steps: int | None = None,
        *,
        successor: Callable[[Successor], ScriptSession] | None = None,
        most_successors: int = 0,
        wanted: Callable[[Loop], bool] | None = None,
    ) -> None:
        super().__init__(loops, outside, conclude, wanted, steps)
        self._make_engine = make_engine
        self._around = ExitStack()
        self._make_successor, self._most_successors = successor, most_successors
        self._pending: Successor | None = None
        self._successor: ScriptSession | None = None
        self.same: bool | None = None  # the first step, run again; None where it was not
        self.alike = ""  # the same, in words
        self.differs = ""  # by how much it is not
        self.reached = False  # the steps that were asked for ended the script
        self.unsafe = ""  # what kept the first step from being run again
        self.deferred = ""  # why no step is run again before one is sick
        self._outer: Loop | None = None  # the loop around, where the step can't be run again alone
        self._left_start: IterationStart | None = None  # of the step in the engine's `left`
        self._left_after = 1  # optimizer steps of that
        self.unseen: set[str] = set()  # loops that trained and were not watched, as file:line

    def close(self) -> None:
        """Takes everything away; the marks stay, and do nothing."""
        self._around.close()
        super().close()

    def _given_up(self) -> None:
        if self.engine is not None:
            # the script goes on, with the other ranks and in the memory it shares
            self.engine.alone.end()
            self.engine.abandon()
        self._around.close()

    # -- from one training to the next -------------------------------------------------------------

    def _begun(self, number: int, frame: FrameType, bound: Mapping[str, Any] | None) -> None:
        loop = self.loop
        if self._pending is not None:
            with self._ours():
                self._succeed(self._pending)
        elif loop is None:
            super()._begun(number, frame, bound)
        elif number != loop.number:
            outer = self._succession.other_loop_began(self._loops.all[number], self.steps)
            if outer is not None and outer is self._outer and not several_ranks():
                with self._ours():
                    self._over_with_step()
                    self._succeed(Successor(outer))
        else:
            with self._ours():
                self._next(frame, loop, bound)
        if self._successor is not None:
            self._successor.begin(number, frame, bound)

    def _sick_first(self, first: Candidate, loss: float, *, used: bool = False) -> None:
        self._search.over()
        self._recovered.begin(first.start)
        self._recovered.callers = codes_above(sys._getframe())
        engine = self._open_engine(first.trained)
        engine.left_at_first(first.capsule, loss, first.indices, used=used)
        self.unsafe = self._unsafe()
        if several_ranks() or self.unsafe:  # whether the others run theirs again is not known
            self._end(engine.first_was_sick([torch.tensor(loss)]))
        stop = self._ended_by_left()
        assert stop is not None
        examined = stop.examined
        self.same = examined is not None and examined.reproduced in ("bitwise", "tolerance")
        self.alike = "bitwise the same" if self.same else "not the same"
        self._end(stop)

    def _unsafe(self) -> str:
        """What of the step's variables can't be put back; "" where all can."""
        variables = (value for _, _, value in self._recovered.reached_variables())
        return WholeState(variables).unsafe or ""

    def _by_hand(self, frame: FrameType, loop: Loop, bound: Mapping[str, Any] | None) -> None:
        self._next(frame, loop, bound)

    def _stepping_while_watching(
        self, optimizer: torch.optim.Optimizer, frame: FrameType, *, by_scaler: bool
    ) -> None:
        engine = self.engine
        assert engine is not None
        if engine.is_open:
            recipe = engine.recipe
            if self._succession.stepped_inside(optimizer, recipe.optimizers, recipe.model):
                engine.checkpoints.forget("a different optimizer has taken over since")
            seen = engine.glance
            if seen is not None and not by_scaler and not seen.stepping(optimizer):
                self._sick_briefly(frame)
            return
        unseen = self._loops.innermost(frame)
        if unseen is None:
            return
        engine.moved_elsewhere = True
        # its name is taken back where it comes to be watched
        self.unseen.add(f"{unseen.file}:{unseen.line}")
        found = self._succession.stepped_elsewhere(frame, self.steps)
        if found is not None and self._most_successors and not several_ranks():
            self._pending = found

    def _succeed(self, found: Successor) -> None:
        """The training is over; another session takes this one's place, if there may be one."""
        engine, self._pending = self.engine, None
        assert engine is not None
        if found.around is None:
            if self._most_successors:
                self.unseen.clear()
            elif self.loop is not None:
                self.unseen.add(f"{self.loop.file}:{self.loop.line}")
            if self._succession.has_grown(engine.recipe.model):
                engine.model_was_changed()
            sick = self._ended_by_left
            end_of_training(engine, self._recovered, lambda: self.over(sick() or Stop()))
        else:  # its steps were parts of one
            engine.abandon()
            engine.end()
        self.state = State.OVER
        if self._make_successor is not None and self._most_successors:
            self._successor = self._make_successor(found)
            # the optimizer of a training that is over must not be taken for one of the next
            self.engine = self._start = self._glance = self._glances = None
            self._optimizers = []
            self._recovered = RecoveredStep(self._outside)
            self._changing = Changing()
            del engine
            gc.collect()
            self._successor.take_over(self._search.made)

    @property
    def started(self) -> Mapping[int, str]:
        """As of `Made`."""
        return self._search.made.started

    def optimizer_places(self) -> dict[int, Place]:
        """Where the optimizers that are known were made, by their id."""
        return self._search.made.places()

    # -- the steps ---------------------------------------------------------------------------------

    def _open_engine(self, trained: Trained) -> ScriptEngine:
        self.engine = engine = self._make_engine(trained, self._recovered)
        engine.keeper.more_scalers = trained.more_scalers
        self._succession.began(trained.recipe.model)
        self._optimizers = engine.recipe.optimizers
        self._around.enter_context(engine.watching())
        self.state = State.WATCHING
        return engine

    def _first_complete(self) -> None:
        self._begin_engine()

    def _begin_engine(self, error: BaseException | None = None) -> None:
        """Runs the first step again, under every watcher, compares the two, and goes on where the
        script stands. `error` is what it raised, if anything."""
        first = self._first
        assert first is not None
        self._first = None
        if error is None and (before := first.sick_before) is not None:
            losses = [float(local_of(loss)) for loss in before.fingerprints[0].losses]
            optimizers = before.trained.recipe.optimizers
            self._recovered.limits.optimizer_steps = 1 + len(optimizers)  # to its end
            mean = sum(losses) / len(losses) if losses else math.nan
            return self._sick_first(before, mean, used=True)
        if (first.steps_first and self._search.losses) or not first.fingerprints:
            first.fingerprints.append(Fingerprint(self._search.losses, []))
        self._search.over()
        self._recovered.begin(first.start)
        self._recovered.callers = codes_above(sys._getframe())
        engine = self._open_engine(first.trained)
        again = run_again(first, engine, self._recovered, error)
        self.same, self.unsafe, self.deferred = again.same, again.unsafe, again.deferred
        self.alike = again.alike
        self.differs = "; ".join(filter(None, (again.differs, again.why)))
        if again.stop is not None:
            self._end(again.stop)
        if again.freed and first.around is not None:
            self._outer = first.around.start.loop
            if not first.finite:  # its optimizer has not stepped yet
                self._around.close()
                self._first, self.loop = first.outward(), self._outer
                return self._begin_engine()
        if not again.holds:
            return self._observe_only(first, again)
        engine.replays = bool(again.same)
        engine.brief.rounds |= again.rounded
        self._left_start = first.start if engine.left is not None else None
        self._left_after = self._recovered.limits.optimizer_steps
        self.steps = 1

    def _observe_only(self, first: Candidate, again: RunAgain) -> None:
        """The step can't be run again, or not while the script goes on, or not by one rank."""
        self._around.close()
        engine = self._open_engine(first.trained)
        engine.begins_with_step(first.steps_first)
        engine.replays = engine.unproven = bool(again.deferred)
        engine.lockstep.enabled = again.together
        if (sick := as_it_ran(first, engine)) is not None:
            self._end(sick)
        self.steps = 1

    def _next(self, frame: FrameType, loop: Loop, bound: Mapping[str, Any] | None) -> None:
        """An iteration of the training begins; the one before is over."""
        self._over_with_step(frame)
        if self._successor is not None or self.state is State.OVER:
            return  # it trained another model: another session has taken over
        self._succession.iteration()
        engine = self.engine
        assert engine is not None
        most = self._most is not None and self.steps >= self._most
        self.reached = most
        if (end := Stop() if most else engine.overdue(self.steps)) is not None:
            self._end(end)
        if self.same and engine.brief.to_be_shown:
            engine.brief.shown = steps_come_to_the_same(engine, self._recovered)
        glance = self._glance = self._glance_at(frame, bound, self.steps)
        if glance is None and not engine.computes_otherwise():
            self._outside.asides.stores.at(frame)
        start = glance or start_of(frame, loop, self._outside, self._changing, bound)
        indices, waited = self._outside.begin_step(start.own_batch, start.recorded)
        if isinstance(start, IterationStart):
            self._start, self._glances = start, None
            self._recovered.begin(start)
            engine.open(
                self.steps, start.batch, indices, waited, self._tripped, self._stepping_sick
            )
        else:
            engine.open_briefly(
                self.steps, start.own_batch, indices, waited, start.numbers, start.recorded
            )
        if engine.checkpoints.found_sick and engine.brief.are_sick():
            engine.abandon()
            sick = engine.sick_unnoticed(self.steps)
            assert sick is not None
            self._end(sick)

    def leave(self, number: int, frame: FrameType | None = None) -> None:
        """The mark behind a loop, in `frame`. Where an exception leaves the loop, it is not known
        yet whether the script catches it."""
        if self.state is State.ASLEEP or self._deaf():
            return
        error = sys.exc_info()[1]
        if isinstance(error, GeneratorExit):  # the script has closed a generator that trains
            error = None
        if frame is not None and error is not None and error.__traceback__ is not None:
            trace = error.__traceback__
            inside = self._loops.running_in(frame, trace.tb_lineno)
            if (
                trace.tb_frame is frame
                and self._loops.all[number] in inside
                and not self._loops.all[number].draws_in(trace)
            ):
                if self._loops.all[number] is self.loop:  # and not one around it
                    if isinstance(error, SystemExit):
                        with self._ours():
                            self._over_with_step(frame, gone=True)
                    else:
                        self._leaving = id(error)  # not held: it holds frames, and what is in them
                elif isinstance(error, SystemExit):
                    self._left_at_first(number, frame)
                return
        if self.loop is None:
            self._left_at_first(number, frame)
            self._search.left(number)
            return
        if number == self.loop.number:
            with self._ours():
                self._over_with_step(frame, gone=not self._came_to_its_end(number))
                if not self.loop.whole:
                    self._recovered.left.note(self._recovered)
                self._outside.asides.inputs.left()
                here().at(None, "script")

    def _over_with_step(self, frame: FrameType | None = None, *, gone: bool = False) -> None:
        if self.state is State.FIRST and not (gone and self._ended_at_first(frame)):
            self._begin_engine()
        self._close_step(frame, gone=gone)

    def _close_step(self, frame: FrameType | None = None, *, gone: bool = False) -> None:
        engine = self.engine
        if engine is None or not engine.is_open:
            return
        # an exception left the step, and the script caught it; or the iteration did not train
        if self._leaving is not None or not engine.trained:
            self._leaving = None
            self._outside.sinks = []
            if not self._leaves_step(engine, frame, gone=gone):
                engine.abandon()
            return
        left = (gone or not engine.differentiated) and not engine.late_steps
        if left and self._leaves_step(engine, frame, gone=gone):
            self._outside.sinks = []
            return
        if engine.only_steps:
            self._outside.sinks = []
            engine.abandon()
            return
        if (
            self._succession.of_another_model
            and self._make_successor is not None
            and not several_ranks()
        ):
            engine.abandon()
            del engine  # what it holds must be gone when the next training is looked for
            self._succeed(Successor())
            return
        if not engine.is_brief:
            # where none comes behind its loss, all of the body is run again
            self._recovered.limits.optimizer_steps = (
                max(1, engine.optimizer_steps) + engine.steps_first
            )
            self._changing.learn(self._start)
        elif engine.optimizer_steps != self._recovered.limits.optimizer_steps:
            engine.brief.give_up()
        self._outside.sinks = []
        before = engine.left
        trouble = engine.close()
        if trouble is not None:
            self._end(trouble)
        if engine.left is not before:
            self._left_start = None if engine.left is None else self._start
            self._left_after = self._recovered.limits.optimizer_steps
        else:
            self._end_by_left()
        self.steps += 1

    def _end_by_left(self) -> None:
        """The run ends with the step in the engine's `left`, if it is to."""
        left = self.engine.left if self.engine is not None else None
        if left is None or not left.ends:
            return
        if self._left_start is not None:
            self._recovered.begin(self._left_start)
            self._recovered.limits.optimizer_steps = self._left_after
        if (sick := self._ended_by_left()) is not None:
            self._end(sick)

    def _stepping_sick(self) -> None:
        """The step before was sick, and an optimizer is about to step with its gradients."""
        engine = self.engine
        if self._deaf() or engine is None or self._succession.of_another_model:
            return
        with self._ours():
            engine.stepped_sick()
            self._end_by_left()

    def _tripped(self) -> None:
        """The step is sick, and its optimizer has not moved the weights yet."""
        if self._deaf() or self._succession.of_another_model:
            return
        with self._ours():
            if self.engine is None or not self.engine.holds_back():
                self._close_step()
