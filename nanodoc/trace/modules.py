"""Which module of a model is running: its path and type, by global forward hooks that are taken off again."""

from __future__ import annotations

from typing import Any

import torch


class ModuleStack:
    """The modules of one model that are being called, innermost last. A context manager around the step."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.modules: list[tuple[str, str]] = []
        """Path and type of every module, by index."""
        self._ids: dict[int, int] = {}
        self.stack: list[int] = []
        """Indices of the modules being called, innermost last."""
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._ids[id(module)] = len(self.modules)
            self.modules.append((name, type(module).__name__))

    @property
    def current(self) -> int:
        """Index of the innermost module, −1 outside of any."""
        return self.stack[-1] if self.stack else -1

    def __enter__(self) -> ModuleStack:
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

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        self.stack.append(self._ids.get(id(module), -1))

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        # An exception can leave inner modules on the stack: drop down to this one.
        index = self._ids.get(id(module), -1)
        while self.stack and self.stack.pop() != index:
            pass
