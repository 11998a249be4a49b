"""Which module of a model is running: its path and type, by global forward hooks that are taken off
again."""

from __future__ import annotations

import threading
from collections.abc import Sized
from typing import Any

import torch

from nanodoc.instrument.originals import ours
from nanodoc.trace.scripted import ScriptedLines
from nanodoc.trace.spans import Place, calling_places


class ModuleStack:
    """The modules of one model that are being called, innermost last. A context manager around the
    step."""

    def __init__(self, model: torch.nn.Module, records: Sized | None = None) -> None:
        """With `records`, which grows by one with every op, the calls of modules outside of any
        other are kept."""
        self._records = records
        self.calls: list[tuple[int, int, Place]] = []
        """(the first op of a call, the one behind its last, the line that made it)"""
        self._open: tuple[int, Place] | None = None
        self.modules: list[tuple[str, str]] = []
        """Path and type of every module, by index."""
        self._ids: dict[int, int] = {}
        self._home_stack: list[int] = []
        self._stacks: dict[int, list[int]] = {}
        """Indices of the modules being called, innermost last, by thread: checkpoints on two
        devices compute again at the same time."""
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._ids[id(module)] = len(self.modules)
            self.modules.append((name, type(module).__name__))
        self.listed = {
            self._ids[id(child)]
            for module in model.modules()
            if isinstance(module, torch.nn.Sequential)
            if type(module).forward is torch.nn.Sequential.forward
            for child in module.children()
            if type(child).__module__.startswith("torch.nn.")
        }
        """Layers of torch's own that a Sequential calls, by index: no line that runs names them."""
        self.scripted = {
            self._ids[id(module)]: ScriptedLines(module)
            for module in model.modules()
            if isinstance(module, torch.jit.ScriptModule)
        }
        """The lines of those that are TorchScript, by index."""

    @property
    def current(self) -> int:
        """`current_of` the running thread."""
        return self.current_of(threading.get_ident())

    def current_of(self, ident: int) -> int:
        """Index of the innermost module that a thread calls, −1 outside of any. A thread that calls
        none works for the one that entered: autograd's threads run the backward that it waits for.
        """
        stack = self._stacks.get(ident) or self._home_stack
        return stack[-1] if stack else -1

    def __enter__(self) -> ModuleStack:
        self._home_stack = self._stacks[threading.get_ident()] = []
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *exc: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @ours
    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if self._records is not None and not stack and stack is self._home_stack:
            own, caller = calling_places(2)
            place = caller or own
            self._open = (len(self._records), place) if place is not None else None
        stack.append(self._ids.get(id(module), -1))

    @ours
    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        # An exception can leave inner modules on the stack: drop down to this one.
        index = self._ids.get(id(module), -1)
        stack = self._stacks.get(threading.get_ident(), [])
        while stack and stack.pop() != index:
            pass
        if self._open is not None and self._records is not None and not self._home_stack:
            self.calls.append((self._open[0], len(self._records), self._open[1]))
            self._open = None
