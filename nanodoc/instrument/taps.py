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
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.autograd.graph
import torch.distributed
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ABSENT, OF_TENSORS, SIDES, our_side, ours, theirs
from nanodoc.instrument.torch_private import LoaderIterator

Listener = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes of the function that it is given the one that is called in its place."""
Undo = Callable[[], None]


class Tap:
    """A function `name` of a module, a class or an object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self._listeners: list[Listener] = []
        self._own: Any = ABSENT
        self.over_replaced = False
        """What is wrapped is not the original, but something of the script's."""
        self._original: Callable[..., Any] = _nothing
        self.wrapper: Any = None
        self._called: Callable[..., Any] = _nothing
        self._sided: Callable[..., Any] | None = None

    def listen(self, listener: Listener) -> Undo:
        """Adds a listener; what is returned takes it away. Raises AttributeError where there is no
        such function, TypeError where it cannot be replaced (a class written in C)."""
        if not self._listeners or SIDES.get(self.owner, self.name) is self._own:
            self._install()
        self._listeners.append(listener)
        self._compose()

        def undo() -> None:
            for number, known in enumerate(self._listeners):
                if known is listener:
                    del self._listeners[number]
                    self._compose()
                    if not self._listeners:
                        self._take_away()
                    return

        return undo

    def _install(self) -> None:
        self._own = SIDES.get(self.owner, self.name)
        self.over_replaced = SIDES.is_replaced(self.owner, self.name, self._own)
        original = self._original = (
            getattr(self.owner, self.name) if self._own is ABSENT else _bound(self._own)
        )

        def tapped(*args: Any, **kwargs: Any) -> Any:
            # usually there are no sides; or nanodoc itself calls, and no code of the training's
            if (not SIDES.replaced and len(OF_TENSORS) == SIDES.size) or SIDES.ours:
                return self._called(*args, **kwargs)
            if not SIDES.are_two:
                return self._called(*args, **kwargs)
            if self._sided is None:
                self._sided = self._with_sides()
            return self._sided(*args, **kwargs)

        with contextlib.suppress(AttributeError):
            functools.update_wrapper(tapped, original)
        vars(tapped)["__nanodoc_tap__"] = self
        SIDES.put(self.owner, self.name, tapped)
        self.wrapper = tapped

    def _take_away(self) -> None:
        if SIDES.get(self.owner, self.name) is self.wrapper:
            SIDES.put(self.owner, self.name, self._own)
        if _open.get((id(self.owner), self.name)) is self:
            del _open[id(self.owner), self.name]

    def _compose(self) -> None:
        self._called, self._sided = self._original, None
        for listener in self._listeners:
            self._called = listener(self._called)
            code = getattr(self._called, "__code__", None)
            if code is not None:
                look_through(code.co_filename)

    def _with_sides(self) -> Callable[..., Any]:
        called = self._original
        for listener in self._listeners:
            called = ours(listener(theirs(called)))
        return called


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
            self._handle = self._register(self._called)
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

    def _called(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if SIDES.are_two:
            with our_side():
                return self._tell(optimizer, args, kwargs)
        return self._tell(optimizer, args, kwargs)

    def _tell(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        changed = None
        for listener in self._listeners:
            result = listener(optimizer, args, kwargs)
            if result is not None:
                changed = args, kwargs = result
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
