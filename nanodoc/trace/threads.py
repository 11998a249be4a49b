"""Which op made an autograd node, whatever threads they ran in.

Autograd counts nodes thread by thread, and runs the backward of an accelerator in threads of its
own, one a device. A checkpoint that computes again there, a second derivative, or a forward pass in
a thread of the user's makes nodes whose numbers say nothing beside those of the thread the step was
begun in. Nodes made elsewhere are marked in their own metadata, a dictionary that autograd keeps
for each node; the mark dies with the node and keeps nothing alive.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction

from nanodoc.instrument.taps import ENGINE_RUN, ENGINE_RUN_BY_BACKWARD, listening
from nanodoc.instrument.torch_private import (
    DisableTorchFunction,
    TorchDispatchMode,
    current_autograd_node,
    pop_mode,
    push_mode,
    sequence_number,
)
from nanodoc.trace.spans import ENGINE

NOWHERE = -1
"""The key of a node that no traced op is known to have made."""

_MARK = "nanodoc-made-by"
_sequence_number: Callable[[], int] = sequence_number


class _Unmarked(NamedTuple):
    """An op that ran elsewhere, and whose node can't be seen before autograd has attached it to the
    output."""

    output: weakref.ref[torch.Tensor]
    key: int
    number: int
    """What its thread had counted up to."""
    thread: int


class NodeKeys:
    """Keys that an op and the node it made have in common, in one trace: the node's number in the
    thread that the trace was begun in, a negative number of its own for every op elsewhere."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.home = threading.get_ident()
        """The thread that the trace was begun in."""
        self.unmarked: list[_Unmarked] = []
        """Not empty: there is something to `settle`."""
        self.elsewhere = False
        """Nodes were made in another thread."""
        self._numbers: dict[int, int] = {}

    def begin(self) -> None:
        """The trace begins, in this thread."""
        self.home = threading.get_ident()
        self._numbers = {self.home: 0}

    def thread(self, ident: int) -> int:
        """The number of a thread in the order the trace met them; 0 is the one it was begun in."""
        with self.lock:
            return self._numbers.setdefault(ident, len(self._numbers))

    def of_op(self, index: int, *, home: bool) -> int:
        """The key of op `index`, which runs now, at home or elsewhere, and of the node it made."""
        return _sequence_number() - 1 if home else -2 - index

    def of_node(self, node: Any) -> int:
        """The key of the op that made `node`."""
        number: int = node._sequence_nr()
        if self.elsewhere:
            made_by = node.metadata.get(_MARK)
            if made_by is not None and made_by[0] is self:
                return int(made_by[1])
        # a custom function's node is made without an op to show for it; one inside another node's
        # backward was made there
        if (
            threading.get_ident() != self.home
            and isinstance(node, BackwardCFunction)
            and _is_nested()
        ):
            return NOWHERE
        return number

    def made(self, index: int, outputs: Iterable[torch.Tensor]) -> None:
        """Op `index` has run. To be told of ops outside the thread the trace was begun in only."""
        if not torch.is_grad_enabled():
            return
        self.elsewhere = True
        ident, number = threading.get_ident(), _sequence_number() - 1
        found = [_Unmarked(weakref.ref(tensor), -2 - index, number, ident) for tensor in outputs]
        with self.lock:
            self.unmarked += found

    def settle(self) -> None:
        """Marks the nodes of ops that have returned to autograd since."""
        ident = threading.get_ident()
        with self.lock:
            waiting, self.unmarked = self.unmarked, []
        left = []
        with DisableTorchFunction():
            for waiter in waiting:
                tensor = waiter.output()
                node = tensor.grad_fn if tensor is not None else None
                if node is not None and node._sequence_nr() == waiter.number:
                    marks: Any = node.metadata  # a property, a method in torch's stub
                    marks[_MARK] = (self, waiter.key)
                elif tensor is not None and waiter.thread != ident:
                    left.append(waiter)  # that thread may still be on its way back
        if left:
            with self.lock:
                self.unmarked += left


def _is_nested() -> bool:
    """The running thread, one of autograd's, is inside a backward that Python code called in it: a
    checkpoint's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is ENGINE:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def backward_everywhere(mode: TorchDispatchMode) -> Iterator[None]:
    """A backward that another thread starts runs under `mode` too; modes are a thread's own."""
    home = threading.get_ident()

    def running(original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == home or current_autograd_node() is not None:
                return original(*args, **kwargs)
            push_mode(mode)
            try:
                return original(*args, **kwargs)
            finally:
                pop_mode()

        return run_backward

    with listening((ENGINE_RUN, running), (ENGINE_RUN_BY_BACKWARD, running)):
        yield


@contextlib.contextmanager
def in_one_thread(model: torch.nn.Module) -> Iterator[None]:
    """Around a step that is run again: the backward of a model on several devices runs in the
    calling thread, so that its ops come in the same order each time, and an op can be found again
    by its number. With one device there is one order in any case."""
    devices = {
        tensor.device
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.device.type != "meta"
    }
    if len(devices) < 2:
        yield
        return
    with torch.autograd.set_multithreading_enabled(False):
        yield
