"""The functions and methods of torch, of libraries and of the standard library that nanodoc listens
to.

Each is a `Tap`. While somebody listens, one wrapper stands in the place of the original and calls
the listeners, the newest first. When nobody listens any more, the original is put back, if the
wrapper is still there: somebody else may have wrapped it since. The files of the listeners are
looked through when the user's line is sought (see `frames`), and a listener runs with torch's own
functions, whatever the script has put in their place (see `originals`).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.graph
import torch.distributed
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ABSENT, OF_TENSORS, SIDES, ours, theirs
from nanodoc.instrument.torch_private import LoaderIterator

Listener = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes of the function that it is given the one that is called in its place."""
Undo = Callable[[], None]


class _Chain:
    """One wrapper, and what it calls. A wrapper that somebody else has wrapped stays in use when
    nobody listens any more; it calls the original then, whatever is installed above it later."""

    __slots__ = ("called", "listeners", "original", "over_replaced", "own", "sided", "wrapper")

    def __init__(self, owner: Any, name: str) -> None:
        self.own = SIDES.get(owner, name)
        self.original: Callable[..., Any] = (
            getattr(owner, name) if self.own is ABSENT else _bound(self.own)
        )
        self.over_replaced = SIDES.is_replaced(owner, name, self.own)
        """What is wrapped is not the original, but something of the script's."""
        self.listeners: list[Listener] = []
        self.called: Callable[..., Any] = self.original
        self.sided: Callable[..., Any] = self.original
        """As `called`, with the changes of sides; the same until it is needed."""
        chain, original = self, self.original

        def tapped(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():  # a compiler traces what was there before, and no listener
                return original(*args, **kwargs)
            # usually there are no sides; or nanodoc itself calls, and no code of the training's
            if (not SIDES.replaced and len(OF_TENSORS) == SIDES.size) or SIDES.ours:
                return chain.called(*args, **kwargs)
            if not SIDES.are_two:
                return chain.called(*args, **kwargs)
            if chain.sided is chain.called:
                chain.sided = chain.with_sides()
            return chain.sided(*args, **kwargs)

        # a compiler tells methods of torch.nn.Module apart by their code
        tapped.__code__ = tapped.__code__.replace()
        with contextlib.suppress(AttributeError):
            functools.update_wrapper(tapped, self.original)
        vars(tapped)["__nanodoc_tap__"] = self
        self.wrapper = tapped

    def compose(self) -> None:
        """Makes what is called of the original and the listeners."""
        called = self.original
        for listener in self.listeners:
            called = listener(called)
            code = getattr(called, "__code__", None)
            if code is not None:
                look_through(code.co_filename)
        self.called = self.sided = called

    def with_sides(self) -> Callable[..., Any]:
        called = self.original
        for listener in self.listeners:
            called = ours(listener(theirs(called)))
        return called


class Tap:
    """A function `name` of a module, a class or an object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self._chain: _Chain | None = None

    @property
    def now(self) -> Any:
        """What the script finds there."""
        return SIDES.get(self.owner, self.name)

    def put(self, value: Any) -> None:
        """Puts back what `now` was."""
        SIDES.put(self.owner, self.name, value)

    def listen(self, listener: Listener) -> Undo:
        """Adds a listener; what is returned takes it away. Raises AttributeError where there is no
        such function, TypeError where it cannot be replaced (a class written in C)."""
        chain = self._chain
        # Somebody may have wrapped the wrapper, which then calls it; or put back what was there
        # before. Without a listener the next one begins a chain of its own, above all that.
        if chain is None or (
            self.now is not chain.wrapper and (not chain.listeners or self.now is chain.own)
        ):
            chain = _Chain(self.owner, self.name)
            self.put(chain.wrapper)
            self._chain = chain
        chain.listeners.append(listener)
        chain.compose()

        def undo() -> None:
            for number, known in enumerate(chain.listeners):
                if known is listener:
                    del chain.listeners[number]
                    chain.compose()
                    break
            if not chain.listeners and self._chain is chain:
                self._take_away(chain)

        return undo

    def _take_away(self, chain: _Chain) -> None:
        if self.now is chain.wrapper:
            self.put(chain.own)
            self._chain = None
        if _open.get((id(self.owner), self.name)) is self and self._chain is None:
            del _open[id(self.owner), self.name]


def _bound(own: Any) -> Any:
    return own.__func__ if isinstance(own, staticmethod) else own


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


class StepTap:
    """The moment before or after `Optimizer.step`, of every optimizer. A listener is given the
    optimizer and its step's args and kwargs, as a hook of torch's, and may return others before a
    step."""

    def __init__(self, register: Callable[[Callable[..., Any]], Any]) -> None:
        self._register = register
        self._listeners: list[Callable[..., Any]] = []
        self._handle: Any = None

    def listen(self, listener: Callable[[torch.optim.Optimizer, Any, Any], Any]) -> Undo:
        """Adds a listener; what is returned takes it away."""
        if not self._listeners:
            self._install()
        # a new list: a step may be under way
        self._listeners = [*self._listeners, listener]

        def undo() -> None:
            had = bool(self._listeners)
            for number, known in enumerate(self._listeners):
                if known is listener or known == listener:
                    self._listeners = [*self._listeners[:number], *self._listeners[number + 1 :]]
                    break
            if had and not self._listeners:
                self._handle.remove()

        return undo

    def leave_uncompiled(self) -> None:
        """From now on a compiler compiles the optimizer's step alone. It would trace into the
        listeners, and cut the step into other graphs, which round otherwise."""
        if self._listeners:
            self._handle.remove()
            self._install()

    def _install(self) -> None:
        called: Callable[..., Any] = self._called
        if "torch._dynamo" in sys.modules:  # else this would load it
            called = torch.compiler.disable(called)
        self._handle = self._register(called)

    def _called(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        changed, before = None, SIDES.change(True) if SIDES.are_two else True
        try:
            for listener in self._listeners:
                result = listener(optimizer, args, kwargs)
                if result is not None:
                    changed = args, kwargs = result
        finally:
            if not before:
                SIDES.change(False)
        return changed


BEFORE_STEP = StepTap(register_optimizer_step_pre_hook)
AFTER_STEP = StepTap(register_optimizer_step_post_hook)

# What a tensor's own backward() calls, too.
BACKWARD = Tap(torch.autograd, "backward")
# backward() and grad() call the first, which torch.autograd has imported from the other module.
ENGINE_RUN_BY_BACKWARD = Tap(torch.autograd, "_engine_run_backward")
ENGINE_RUN = Tap(torch.autograd.graph, "_engine_run_backward")
SCALER_MADE = Tap(GradScaler, "__init__")
SCALE = Tap(GradScaler, "scale")
GET_SCALE = Tap(GradScaler, "get_scale")
UNSCALE = Tap(GradScaler, "unscale_")
SCALER_STEP = Tap(GradScaler, "step")
SCALER_UPDATE = Tap(GradScaler, "update")
OPTIMIZER_MADE = Tap(torch.optim.Optimizer, "__init__")
ZERO_GRAD = Tap(torch.optim.Optimizer, "zero_grad")
SCHEDULER_STEP = Tap(LRScheduler, "step")
MODULE_ZERO_GRAD = Tap(torch.nn.Module, "zero_grad")
MODULE_TRAIN = Tap(torch.nn.Module, "train")
MODULE_STATE = Tap(torch.nn.Module, "state_dict")
MODULE_LOADS = Tap(torch.nn.Module, "load_state_dict")
MODULE_ASSIGNS = Tap(torch.nn.Module, "__setattr__")
MODULE_REGISTERS = Tap(torch.nn.Module, "register_parameter")
# clip_grad_norm_ calls it, by whatever name it was imported.
CLIP_BY_NORM = Tap(clip_grad, "_clip_grads_with_norm_")
TOTAL_NORM = Tap(clip_grad, "_get_total_norm")
# clip_grad_value_ and the norm group the gradients with it before they do anything else.
CLIP_GROUPS = Tap(clip_grad, "_group_tensors_by_device_and_dtype")
CLIP_BY_VALUE = Tap(clip_grad, "clip_grad_value_")
CLIP_BY_VALUE_EXPORTED = Tap(torch.nn.utils, "clip_grad_value_")
AUTOCAST_ENTERED = Tap(torch.autocast, "__enter__")
AUTOCAST_LEFT = Tap(torch.autocast, "__exit__")
INFERENCE_ENTERED = Tap(torch.inference_mode, "__enter__")
INFERENCE_LEFT = Tap(torch.inference_mode, "__exit__")
COMPILE = Tap(torch, "compile")
GRAD_SWITCHED = Tap(torch.set_grad_enabled, "__init__")
SAVE = Tap(torch, "save")
LOAD = Tap(torch, "load")
SHOW_WARNING = Tap(warnings, "showwarning")
OPEN = Tap(builtins, "open")
NEXT = Tap(builtins, "next")
LOADER_NEXT = Tap(LoaderIterator, "__next__")
LOADER_INDEX = Tap(LoaderIterator, "_next_index")

TABLE = {(id(tap.owner), tap.name): tap for tap in list(vars().values()) if isinstance(tap, Tap)}
"""The taps above, by owner and name."""
_open: dict[tuple[int, str], Tap] = {}


def at(owner: Any, name: str) -> Tap:
    """The tap of any other function or method: of a library, of the standard library, of a class of
    the script's. There is one as long as somebody listens."""
    key = id(owner), name
    tap = TABLE.get(key) or _open.get(key)
    if tap is None:
        tap = _open[key] = Tap(owner, name)
    return tap


@contextlib.contextmanager
def listening(*pairs: tuple[Tap | StepTap, Callable[..., Any]]) -> Iterator[None]:
    """Listens inside, whatever is raised."""
    with contextlib.ExitStack() as undo:
        for tap, listener in pairs:
            undo.callback(tap.listen(listener))
        yield


@contextlib.contextmanager
def kept_as_they_are() -> Iterator[None]:
    """What stands at the places of the table is put back afterwards: a step that is run again may
    put something of its own there, as it did when it ran."""
    before = [(tap, tap.now) for tap in TABLE.values()]
    try:
        yield
    finally:
        for tap, value in before:
            if tap.now is not value:
                tap.put(value)
