"""A session that looks for the loop that is a script's training, until its first step is over."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from nanodoc.heartbeat.answering import start_answering
from nanodoc.instrument.frames import caller
from nanodoc.instrument.originals import SIDES
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.script.fingerprint import Fingerprint, gradients_of
from nanodoc.script.hooks import installed
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.marks import listen
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate, Search
from nanodoc.script.states import State, TrainingIsSick
from nanodoc.script.suspended import Suspensions
from nanodoc.script.trained import Made
from nanodoc.script.unused_loss import graph_position, sick_loss_in
from nanodoc.trace.optimizer_steps import Closure, around_closure
from nanodoc.trace.spans import calling_places

_SESSIONS: weakref.WeakSet[SearchSession] = weakref.WeakSet()


def _forked() -> None:
    """A loader's worker trains nothing."""
    for session in list(_SESSIONS):
        session.state = State.OVER


os.register_at_fork(after_in_child=_forked)


class _Ours:
    """As `SearchSession._ours`. No generator: it is entered several times a step."""

    __slots__ = ("_before", "_session")

    def __init__(self, session: SearchSession) -> None:
        self._session = session
        self._before = False

    def __enter__(self) -> None:
        self._session._busy = True
        SIDES.look()
        self._before = SIDES.change(True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        session = self._session
        try:
            broken = error is not None and session._breaks(error)
        finally:
            session._busy = False
            SIDES.change(self._before)
        if error is None or broken:
            session._gone_on()
        return broken


class SearchSession:
    """Marks and hooks, asleep until the script makes an optimizer. `wanted` says whether a loop may
    be the one, where that is known."""

    wants_first: bool = False
    """The first step is to be examined before its optimizer has stepped, healthy or not."""

    def __init__(
        self, loops: Loops, outside: Outside, wanted: Callable[[Loop], bool] | None = None
    ) -> None:
        self._loops = loops
        self._outside = outside
        self._suspensions = Suspensions(outside)
        self._recovered = RecoveredStep(outside)
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        self._search = Search(loops, outside, self._recovered, wanted)
        self._first: Candidate | None = None
        self._busy = False
        self._asked_to_end = False
        """While nanodoc's own code ran."""
        self._at_end: int | None = None
        """The loop that came to its end last, by itself."""
        self._since = 0
        """Where autograd stood when the open iteration began."""
        self.state = State.ASLEEP
        self.loop: Loop | None = None
        self.broken: Exception | None = None  # of nanodoc's own, which ended the watching

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
        while self._undo:
            self._undo.pop()()
        self._search.close()
        self._first = None

    def each(self, values: Any) -> Any:
        again = self._outside.given is not None  # an iteration is run again, perhaps after the end
        return self._outside.each(values) if again or self.state is not State.OVER else values

    def turns(self, number: int) -> Loop | None:
        """The loop, where its iterations are to be told: until the training is known those that may
        be it, and then that one, as long as nothing is trained elsewhere."""
        loop = self._loops.all[number]
        asleep = self.state is State.ASLEEP and not loop.backwards
        wanted = not asleep and not self._deaf() and self._wants_turns(loop)
        return loop if wanted else None

    def turn(self, number: int, frame: FrameType, bound: Mapping[str, Any]) -> bool:
        """An iteration of it begins, and binds this. False where no more are to be told."""
        self.begin(number, frame, bound)
        return self._wants_turns(self._loops.all[number])

    def _wants_turns(self, loop: Loop) -> bool:
        if self.loop is None:
            return not self._search.idles(loop.number)
        return loop is self.loop

    def suspensions(self) -> Suspensions | None:
        """None where nobody keeps what they come to."""
        if threading.get_ident() != self._thread:
            return None
        again = self._outside.given is not None
        return self._suspensions if again or self.state is not State.OVER else None

    def _ours(self) -> contextlib.AbstractContextManager[None]:
        """While nanodoc's own code runs: the marks and hooks that it meets are not the script's. An
        error of its own ends the watching, and the script goes on."""
        return _Ours(self)

    def _in_ours(self, do: Callable[..., bool | None], *arguments: Any) -> bool | None:
        """As `do(*arguments)` within `_ours`, in fewer calls; True where an error of nanodoc's own
        has ended the watching."""
        self._busy = True
        SIDES.look()
        before = SIDES.change(True)
        try:
            done = do(*arguments)
        except BaseException as error:
            if not self._breaks(error):
                raise
            done = True
        finally:
            self._busy = False
            SIDES.change(before)
        if self._asked_to_end:
            self._gone_on()
        return done

    def _breaks(self, error: BaseException | None) -> bool:
        """It is an error of nanodoc's own, which ends the watching."""
        if not isinstance(error, Exception) or isinstance(error, TrainingIsSick):
            return False
        if os.environ.get("NANODOC_DEBUG"):
            return False
        self.broken = error
        self.state = State.OVER
        with contextlib.suppress(Exception):
            self._given_up()
        return True

    def _gone_on(self) -> None:
        """nanodoc's own code is over, and the script goes on."""

    def _deaf(self) -> bool:
        return self._busy or self.state is State.OVER or threading.get_ident() != self._thread

    def _given_up(self) -> None:
        """An error of nanodoc's own ends the watching."""

    # -- the search --------------------------------------------------------------------------------

    def made(self, made: Any) -> None:
        """There is an optimizer or a loss scaler."""
        own, caller = calling_places(2)
        self._search.made.note(made, caller or own)
        if isinstance(made, torch.optim.Optimizer):
            self._wake()
            if several_ranks():
                start_answering()  # the first step may be the one that hangs

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
        if self.loop is None or number == self.loop.number:
            self._at_end, self._since = None, graph_position()
        self._begun(number, frame, bound)

    def _begun(self, number: int, frame: FrameType, bound: Mapping[str, Any] | None) -> None:
        """An iteration of a loop begins, and somebody listens."""
        if self.loop is not None:
            return
        with self._ours():
            loop = self._loops.all[number]
            by_hand = self._search.begin(frame, loop, bound)
            if by_hand is not None:  # no optimizer moves its weights
                self._choose(by_hand)
                self._by_hand(frame, loop, bound)

    def _by_hand(self, frame: FrameType, loop: Loop, bound: Mapping[str, Any] | None) -> None:
        """The step that is over was the first of a loop without an optimizer."""
        self._first_complete()

    def through(self, number: int) -> None:
        """The mark where a loop has come to its end by itself; `leave` follows."""
        if not self._deaf():
            self._at_end = number

    def leave(self, number: int, frame: FrameType | None = None) -> None:
        """The mark behind a loop, in `frame`."""
        if self.state is State.ASLEEP or self._deaf():
            return
        if self.loop is None:
            first, _ = self._left_for_its_loss(number, frame)
            if first is not None:
                with self._ours():
                    self._choose(first)
                    self._first_complete()
            self._search.left(number)
        elif number == self.loop.number and self._first is not None:
            with self._ours():
                self._first_complete()

    def _left_for_its_loss(
        self, number: int, frame: FrameType | None
    ) -> tuple[Candidate | None, float]:
        """The first iteration of a training, where the loop is left for its loss before any
        optimizer has stepped, and that loss."""
        first = self._search.left_for_its_loss(number)
        if first is None or frame is None or self._came_to_its_end(number):
            return None, 0.0
        loss = sick_loss_in(frame, first.start.loop, self._since)
        return (None, 0.0) if loss is None else (first, float(loss.detach()))

    def _came_to_its_end(self, number: int) -> bool:
        """The loop that is left was not broken off. What is no loop is left by every iteration."""
        return self._at_end == number or self._loops.all[number].whole

    def _before_backward(self, tensors: Any) -> None:
        self._outside.trains()
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
        self._outside.trains()
        frame, changed = caller(), None
        if self.state is not State.WATCHING:
            self._search.made.stepping(optimizer)
        else:
            with self._ours():
                self._stepping_while_watching(optimizer, frame, by_scaler=by_scaler)
            return None
        self._wake()
        with self._ours():
            if self._first is None:
                found = self._search.running(frame, "closure" in kwargs or len(args) > 1)
                if found is None:
                    self._search.moving()
                    return None
                self._choose(found)
            if by_scaler or self._first is None:
                return None
            self._first.optimizer_steps += 1
            changed = around_closure(args, kwargs, lambda closure: self._closed(optimizer, closure))
            if changed is None:
                self._gradients_complete(optimizer)
        return changed

    def _stepping_while_watching(
        self, optimizer: torch.optim.Optimizer, frame: FrameType, *, by_scaler: bool
    ) -> None:
        """An optimizer is about to step, and the loop is known."""

    def take_over(self, made: Made) -> None:
        """The optimizers of the session before this one are known."""
        self._search.made, self.state = made, State.SEARCHING

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
        if not seen.finite or self.wants_first:
            self._first_complete()

    def _first_complete(self) -> None:
        """The first step is over, or its gradients are there, as `wants_first` says."""
        raise NotImplementedError

    def _choose(self, found: Candidate) -> None:
        """The loop is known."""
        self._first, self.loop, self.state = found, found.start.loop, State.FIRST
        self._search.chosen(found)
