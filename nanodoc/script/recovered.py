"""An iteration of a script's loop as a train_step, so that everything that runs a recipe's step
again runs the script's."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import get_ident
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import torch

from nanodoc.instrument.frames import look_through
from nanodoc.instrument.taps import AFTER_STEP, listening
from nanodoc.recipe.variables import globals_of
from nanodoc.replay.fsdp import as_between_steps
from nanodoc.replay.objects import PlainState
from nanodoc.replay.telling import unused_loss
from nanodoc.script.body import Body
from nanodoc.script.fingerprint import Fingerprint, fingerprinted
from nanodoc.script.iteration import (
    AutocastFlags,
    IterationStart,
    ScriptBatch,
    autocast_flags,
    batch_names,
    copied,
)
from nanodoc.script.left_loop import LeftLoop
from nanodoc.script.loops import Loop
from nanodoc.script.muted import muted, no_new_tasks
from nanodoc.script.outside import Drawings, Outside, StopReplay
from nanodoc.script.tail import statements_that_move
from nanodoc.script.unused_loss import graph_position, sick_loss_in

look_through(__file__)


@dataclass(slots=True)
class Limits:
    """What is expected of a step that is run again. One object for all of them."""

    optimizer_steps: int = 1
    """After so many the step is over: what the body does then is not run again."""
    reach: int | None = 0
    """Of steps that follow one another, so many statements of the body are run again, and not only
    up to the last optimizer step: what follows moves what the next step reads, as target networks
    or averages of weights. 0: none. None: to be found out."""
    draws: bool = False
    """The last iteration that was run again drew values from outside of it."""
    fingerprints: list[Fingerprint] | None = None
    """Where those of the next run go."""
    unused: bool = False
    """A loss that is not finite, and that the body leaves without differentiating it, counts."""
    around_backward: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None


class RecoveredStep:
    """The train_step. Whoever keeps the start of a step keeps its attributes, too."""

    of_script = True
    """As `closure_state` asks."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._bodies: dict[tuple[int, bool, int], Body] = {}
        self.limits = Limits()
        self.followed = False
        """What is run again now is followed by the next step (`loop.brief_steps`)."""
        self.loop: Loop | None = None
        self.code: CodeType | None = None
        self.namespace: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        self.trained: dict[str, ref[Any]] = {}
        self.suspended: dict[str, ref[Any]] = {}
        self.recorded = Drawings()
        self.numbers: dict[str, Any] = {}
        self.undo: PlainState | None = None
        self.writes = False
        self.left = LeftLoop()
        self.callers: frozenset[CodeType] = frozenset()
        """The code of the script's functions that were running when the training began."""
        self.flags: AutocastFlags = autocast_flags()
        self._since = 0

    def begin(self, start: IterationStart) -> None:
        """An iteration begins."""
        self.loop, self.code, self.namespace = start.loop, start.code, start.namespace
        self.variables, self.undo, self.flags = start.variables, start.undo, start.flags
        self.recorded, self.trained = start.recorded, start.trained
        self.suspended, self.numbers = start.suspended, start.numbers
        self.writes = start.batch_is_copy

    def __call__(self, model: torch.nn.Module, batch: Any) -> Any:
        """Runs the iteration again, up to its last optimizer step; returns its last loss."""
        assert self.loop is not None
        assert self.code is not None
        body = self._body(self.loop, self.code)
        if self.undo is not None:
            self.undo.restore()
        outside, before = self._outside, self._outside.given
        # copies, so that a body that writes into its batch finds it as it was the next time
        given = copied(batch) if self.writes else batch
        suspended = {**_gone(self.suspended), **_alive(self.suspended)}
        variables = {**self.variables, **self.numbers, **suspended, **self._named(given)}
        counted = {n: v for n, v in self.numbers.items() if n not in self.variables}  # global ones
        drawn, self._since = deque(self.recorded), graph_position()
        try:
            outside.given = drawn
            with (
                muted(),
                no_new_tasks(),
                self._counted(),
                _autocast_as(self.flags),
                _bound_again(self.namespace, {**_alive(self.trained), **counted}),
            ):
                body(variables, self.namespace, self._left)
        except StopReplay:
            pass
        except SystemExit:
            if not self.limits.unused:
                raise
        finally:
            if self.limits.unused:  # it may have been left before its backward
                as_between_steps(model)
            self.limits.draws = len(drawn) < len(self.recorded)
            outside.given = before

    @property
    def draws(self) -> bool:
        """Run again, the iteration draws values from outside of it, such as its batch by `next`.
        What comes after its optimizer's step, the next batch of a loader among it, is not drawn."""
        return self.limits.draws

    def _body(self, loop: Loop, code: CodeType) -> Body:
        reach = (self.limits.reach or 0) if self.followed else 0
        kind = loop.number, self.limits.unused, reach
        if kind not in self._bodies:
            part = replace(loop, body=loop.body[:reach]) if reach else loop
            self._bodies[kind] = Body(part, code, told=self.limits.unused)
        return self._bodies[kind]

    def _left(self, frame: FrameType) -> None:
        """The iteration that is run again is left in `frame`: its loss, if that is sick and was not
        differentiated, counts as its loss."""
        loss = None if self.loop is None else sick_loss_in(frame, self.loop, self._since)
        if loss is not None:
            unused_loss(loss)

    @property
    def loader(self) -> Any:
        """The data set, collate function and sampler of the training's loader, by the names that a
        DataLoader has for them."""
        return self._outside.loader

    @property
    def batch_name(self) -> str:
        """The variable that holds the batch; "" where several hold parts of it."""
        names = batch_names(self.loop, self.variables) if self.loop is not None else []
        return names[0] if len(names) == 1 else ""

    def _named(self, batch: Any) -> dict[str, Any]:
        """The batch by the names of the loop's own variables."""
        if isinstance(batch, ScriptBatch):
            return dict(batch)
        names = batch_names(self.loop, self.variables) if self.loop is not None else []
        if len(names) == 1:
            return {names[0]: batch}
        return dict(batch) if isinstance(batch, Mapping) else {}

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Ends the body behind its last optimizer step, unless more of it is wanted."""
        steps, most, thread = 0, self.limits.optimizer_steps, get_ident()
        in_a_row = self.followed and bool(self.limits.reach)

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal steps
            if get_ident() != thread:
                return
            steps += 1
            if steps < most or in_a_row:
                return
            if self.limits.reach is None:
                assert self.loop is not None
                self.limits.reach = statements_that_move(self.loop, sys._getframe(1))
            raise StopReplay

        prints, self.limits.fingerprints = self.limits.fingerprints, None
        around = self.limits.around_backward
        with (
            listening((AFTER_STEP, after)),
            contextlib.nullcontext() if prints is None else fingerprinted(prints, around),
        ):
            yield

    def draws_unseen(self) -> str | None:
        """The name of an iterator that the body draws from otherwise than by `next` or `for`: what
        it gives is not kept."""
        assert self.loop is not None
        values = {name: value for name, _, value in self.reached_variables()}
        values |= {**_gone(self.suspended), **_alive(self.suspended)}
        return next((name for name in self.loop.drawn if _is_iterator(values.get(name))), None)

    @property
    def body_code(self) -> CodeType | None:
        """The code of the iteration, as `recipe.variables` asks."""
        if self.loop is None or self.code is None:
            return None
        return self._body(self.loop, self.code).code

    def reached_variables(self) -> Iterator[tuple[str, Any, Any]]:
        """What the body reads, as `recipe.variables` asks: (name, its namespace, value)."""
        if self.loop is None or self.code is None:
            return
        body = self._body(self.loop, self.code)
        if not body.module_level:
            for name, value in list(self.variables.items()):
                yield name, self.variables, value
        for name in dict.fromkeys(
            (*globals_of(body.code), *(self.loop.names if body.module_level else ()))
        ):
            if name in self.namespace:
                yield name, self.namespace, self.namespace[name]


def _alive(held: Mapping[str, ref[Any]]) -> dict[str, Any]:
    return {name: value for name, known in held.items() if (value := known()) is not None}


def _gone(held: Mapping[str, ref[Any]]) -> dict[str, Any]:
    """A stand-in for each that went with the function of the loop: what an iteration drew from it
    is known, and given again."""
    return {name: _Gone() for name, known in held.items() if known() is None}


class _Gone(Iterator[Any]):
    """Asked for more than is known, it ends the iteration that is run again."""

    def __next__(self) -> Any:
        raise StopReplay("an iterator is gone")


@contextlib.contextmanager
def _bound_again(namespace: dict[str, Any], values: Mapping[str, Any]) -> Iterator[None]:
    """The global variables hold these values inside, and what they hold now afterwards."""
    absent = object()
    before = {name: namespace.get(name, absent) for name in values}
    namespace.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is absent:
                namespace.pop(name, None)
            elif namespace.get(name) is not value:
                namespace[name] = value


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)


@contextlib.contextmanager
def _autocast_as(flags: AutocastFlags) -> Iterator[None]:
    with contextlib.ExitStack() as contexts:
        for kind, enabled, dtype in flags:
            now = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            if (enabled or now[0]) and (enabled, dtype) != now:
                contexts.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield
