"""An iteration of a script's loop as a train_step, so that everything that runs a recipe's step
again runs the script's."""

from __future__ import annotations

import contextlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FrameType
from typing import Any
from weakref import ref

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from nanodoc import accelerator
from nanodoc.recipe.variables import globals_of
from nanodoc.replay.objects import HOLDS_NOTHING, SUSPENDED, PlainState
from nanodoc.script.body import Body
from nanodoc.script.fingerprint import Fingerprint, fingerprinted
from nanodoc.script.left_loop import LeftLoop
from nanodoc.script.loops import Loop
from nanodoc.script.muted import muted, no_new_tasks
from nanodoc.script.outside import Drawings, Outside, StopReplay
from nanodoc.script.unused_loss import tell_unused
from nanodoc.tensors.nested import map_tensors, tensors_of
from nanodoc.trace.frame_variables import variables_of_frame

_NUMBERS = (int, float)
_TRAINED = (torch.nn.Module, torch.optim.Optimizer)
_LEARNT_FROM = 3  # iterations
AutocastFlags = tuple[tuple[str, bool, torch.dtype], ...]
"""(type of device, whether autocast is on, its dtype)"""


@dataclass(slots=True)
class Limits:
    """What is expected of a step that is run again. One object for all of them."""

    optimizer_steps: int = 1
    """After so many the step is over: what the body does then is not run again."""
    draws: bool = False
    """The last iteration that was run again drew values from outside of it."""
    fingerprints: list[Fingerprint] | None = None
    """Where those of the next run go."""
    unused: bool = False
    """A loss that is not finite, and that the body leaves without differentiating it, counts."""
    through: bool = False
    """The last iteration that was run again came to its end, or to a `continue`."""
    around_backward: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None


class RecoveredStep:
    """The train_step. Whoever keeps the start of a step keeps its attributes, too."""

    of_script = True
    """As `closure_state` asks."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._bodies: dict[tuple[int, bool], Body] = {}
        self.limits = Limits()
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
        self.flags: AutocastFlags = _autocast_flags()

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
        given = _copied(batch) if self.writes else batch
        suspended = {**_gone(self.suspended), **_alive(self.suspended)}
        variables = {**self.variables, **self.numbers, **suspended, **self._named(given)}
        counted = {n: v for n, v in self.numbers.items() if n not in self.variables}  # global ones
        drawn, self.limits.through = deque(self.recorded), False
        try:
            outside.given = drawn
            with (
                muted(),
                no_new_tasks(),
                self._counted(),
                _autocast_as(self.flags),
                _bound_again(self.namespace, {**_alive(self.trained), **counted}),
            ):
                body(variables, self.namespace, tell_unused, self._through)
        except StopReplay:
            pass
        except SystemExit:
            if not self.limits.unused:
                raise
        finally:
            self.limits.draws = len(drawn) < len(self.recorded)
            outside.given = before

    @property
    def draws(self) -> bool:
        """Run again, the iteration draws values from outside of it, such as its batch by `next`.
        What comes after its optimizer's step, the next batch of a loader among it, is not drawn."""
        return self.limits.draws

    def _body(self, loop: Loop, code: CodeType) -> Body:
        kind = loop.number, self.limits.unused
        if kind not in self._bodies:
            self._bodies[kind] = Body(loop, code, told=self.limits.unused)
        return self._bodies[kind]

    def _through(self) -> None:
        self.limits.through = True

    @property
    def loader(self) -> Any:
        """The data set, collate function and sampler of the training's loader, by the names that a
        DataLoader has for them."""
        return self._outside.trained_on

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
        """Ends the body behind its last optimizer step."""
        steps, most = 0, self.limits.optimizer_steps

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal steps
            steps += 1
            if steps >= most:
                raise StopReplay

        prints, self.limits.fingerprints = self.limits.fingerprints, None
        hook = register_optimizer_step_post_hook(after)
        try:
            around = self.limits.around_backward
            with contextlib.nullcontext() if prints is None else fingerprinted(prints, around):
                yield
        finally:
            hook.remove()

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


class Changing:
    """Learns which objects an iteration changes: the others need not be copied at every step."""

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        self._iterations = 0
        self.writes = False
        """The body writes into its batch."""

    @property
    def known(self) -> list[Any] | None:
        """The objects that change; None until a few iterations have told."""
        return list(self._seen.values()) if self._iterations >= _LEARNT_FROM else None

    def learn(self, start: IterationStart | None) -> None:
        """An iteration is over."""
        if start is not None:
            self._iterations += 1
            self._seen.update({id(value): value for value in start.undo.changed()})
            self.writes = self.writes or start.was_written


class ScriptBatch(dict[str, Any]):
    """The values of the loop's variables that hold tensors, by name."""


@dataclass(slots=True)
class IterationStart:
    """What one iteration of a loop begins with."""

    loop: Loop
    code: CodeType
    namespace: dict[str, Any]
    variables: dict[str, Any]
    undo: PlainState
    flags: AutocastFlags
    batch: Any = None
    """The batch it was given: the value of the loop's variable, or the values of several by name.
    Empty where the body makes its batch itself. A copy, where the body writes into it."""
    batch_is_copy: bool = False
    versions: tuple[int, ...] = ()  # how often the batch's tensors had been written to
    trained: dict[str, ref[Any]] = field(default_factory=dict)
    """The networks and optimizers among the global variables: a script may load its best model into
    the variable when the loop is over. Not held: a script may let go of one."""
    recorded: Drawings = field(default_factory=Drawings)
    numbers: dict[str, Any] = field(default_factory=dict)
    """Those that the loop binds or counts by: other steps have others."""
    suspended: dict[str, ref[Any]] = field(default_factory=dict)
    """Generators and coroutines among the variables, which are not held."""
    own_batch: Any = None  # the script's own objects

    @property
    def was_written(self) -> bool:
        """The body has written into its batch."""
        return _versions(self.own_batch) != self.versions


def batch_of(names: Sequence[str], variables: Mapping[str, Any]) -> Any:
    """The values of these variables; of several by name."""
    if len(names) == 1:
        return variables[names[0]]
    return ScriptBatch({name: variables[name] for name in names})


def _versions(batch: Any) -> tuple[int, ...]:
    return tuple(0 if t.is_inference() else t._version for t in tensors_of(batch))


def _copied(batch: Any) -> Any:
    return map_tensors(batch, lambda tensor: tensor.detach().clone())


def start_of(
    frame: FrameType,
    loop: Loop,
    outside: Outside,
    changing: Changing | None = None,
    bound: Mapping[str, Any] | None = None,
) -> IterationStart:
    """The start of the iteration that `frame` is about to run; `changing` knows what the iterations
    before it changed, and `bound` are variables that the loop is about to bind."""
    code, namespace = frame.f_code, frame.f_globals
    if code.co_name == "<module>":
        variables = {n: namespace[n] for n in loop.names if n in namespace}
        beside: Mapping[str, Any] = {}
    else:
        variables = variables_of_frame(frame)
        beside = {n: namespace[n] for n in loop.names if n in namespace and n not in variables}
    variables.update(bound or {})
    suspended = {n: ref(v) for n, v in variables.items() if isinstance(v, SUSPENDED)}
    for name in suspended:
        del variables[name]
    for name in loop.rebound:
        # a loss of the last iteration would keep its graph alive
        if name in variables and any(t.requires_grad for t in tensors_of(variables[name])):
            del variables[name]
    values = [*variables.values(), *beside.values()]
    looked_into = [value for value in values if type(value) not in HOLDS_NOTHING]
    for value in looked_into:
        outside.simulator(value)
    # functions that the body calls may reach others
    outside.simulators_of(namespace, (loop.file, loop.number))
    undo = PlainState(looked_into, changing.known if changing is not None else None)
    batch = batch_of(batch_names(loop, variables), variables)
    versions, copied = _versions(batch), changing is None or changing.writes
    return IterationStart(
        loop,
        code,
        namespace,
        variables,
        undo,
        _autocast_flags(),
        _copied(batch) if copied else batch,
        copied,
        versions,
        {n: ref(v) for n, v in list(namespace.items()) if issubclass(type(v), _TRAINED)},
        Drawings(code),
        numbers_among((*loop.targets, *loop.carried), variables, beside),
        suspended,
        batch,
    )


def numbers_among(
    names: Iterable[str], variables: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """The numbers of these names: a function's variables, or else global ones (`beside`)."""
    found = {name: variables.get(name, beside.get(name)) for name in names}
    return {name: value for name, value in found.items() if type(value) in _NUMBERS}


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


def batch_names(loop: Loop, variables: Mapping[str, Any]) -> list[str]:
    """The names that hold the batch: those that the loop binds; for a loop that binds none (`while
    True`), those that the body reads first and binds anew."""
    found = [n for n in loop.targets if _holds_data(variables.get(n))]
    return found or [n for n in sorted(loop.carried) if _holds_data(variables.get(n))]


def _holds_data(value: Any) -> bool:
    if isinstance(value, torch.nn.Module):
        return False
    tensors = tensors_of(value)
    return bool(tensors) and not any(tensor.requires_grad for tensor in tensors)


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__") and not isinstance(value, io.IOBase)


def _autocast_flags() -> AutocastFlags:
    if not torch._C._is_any_autocast_enabled():
        return _without_autocast()
    return tuple(
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in accelerator.kinds()
    )


@cache
def _without_autocast() -> AutocastFlags:
    """Asked for once: which devices there are takes its time."""
    return tuple((kind, False, torch.get_autocast_dtype(kind)) for kind in accelerator.kinds())


@contextlib.contextmanager
def _autocast_as(flags: AutocastFlags) -> Iterator[None]:
    with contextlib.ExitStack() as contexts:
        for kind, enabled, dtype in flags:
            now = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
            if (enabled or now[0]) and (enabled, dtype) != now:
                contexts.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
        yield
