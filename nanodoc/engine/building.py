"""What `build()` did, seen from outside: where parameters and optimizers were made, and memory nobody ever wrote to.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from nanodoc.evidence import SourceSpan
from nanodoc.trace.ops import describe_op, written_by
from nanodoc.trace.spans import Place, calling_places, resolve

# Tensor methods through which NumPy and C code get at the memory.
_EXPORTS = ("numpy", "__array__", "data_ptr", "__dlpack__")


class BuildWatch(TorchDispatchMode):
    """Active during the import of the user's file and its `build()`; changes nothing of what they compute."""

    def __init__(self) -> None:
        super().__init__()
        self._unwritten: dict[int | None, torch.Tensor] = {}
        self._places: dict[tuple[int, str], Place] = {}
        self._optimizers: dict[int, Place] = {}
        self._alive: list[Any] = []
        self._originals: dict[str, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Tracer: no dynamo import for a run that compiles nothing

    def __enter__(self) -> BuildWatch:
        self._register = torch.nn.Module.register_parameter
        self._optimizer = torch.optim.Optimizer.__init__
        register, init, watch = self._register, self._optimizer, self

        def register_parameter(module: torch.nn.Module, name: str, param: Any) -> None:
            register(module, name, param)
            watch._note(watch._places, (id(module), name), module)

        def optimizer_init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            watch._note(watch._optimizers, id(optimizer), optimizer)
            init(optimizer, *args, **kwargs)

        for name in _EXPORTS:
            self._originals[name] = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, self._exporting(getattr(torch.Tensor, name)))
        torch.nn.Module.register_parameter = register_parameter  # type: ignore[method-assign, assignment]  # put back in __exit__
        torch.optim.Optimizer.__init__ = optimizer_init  # type: ignore[method-assign, assignment]  # put back in __exit__
        return super().__enter__()  # type: ignore[no-any-return]  # unannotated in torch

    def __exit__(self, *exc: Any) -> None:
        for name, original in self._originals.items():
            if original is None:  # inherited from the C base class
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
        torch.nn.Module.register_parameter = self._register  # type: ignore[method-assign]  # the original
        torch.optim.Optimizer.__init__ = self._optimizer  # type: ignore[method-assign]  # the original
        super().__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if describe_op(func).silent:
            if isinstance(out, torch.Tensor) and out.device.type != "meta":
                self._unwritten[out.untyped_storage()._cdata] = out  # held, so that its address is not used again
        elif self._unwritten:
            for tensor in written_by(describe_op(func), args, kwargs):
                self._unwritten.pop(_storage(tensor), None)
        return out

    def _exporting(self, original: Any) -> Any:
        """A tensor method that hands out the memory itself: from then on it may be written unseen."""

        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._unwritten.pop(_storage(tensor), None)
            return original(tensor, *args, **kwargs)

        return method

    def settle(self, model: torch.nn.Module) -> BuildFacts:
        """What is known once `build()` has returned `model`; lets go of everything else."""
        never = {name for name, tensor in _named(model) if _storage(tensor) in self._unwritten}
        places = {}
        for path, module in model.named_modules():
            for name in module._parameters:
                place = self._places.get((id(module), name))
                if place is not None:
                    places[f"{path}.{name}" if path else name] = place
        optimizers = dict(self._optimizers)
        self._unwritten, self._alive = {}, []
        return BuildFacts(never, places, optimizers)

    def _note(self, table: dict[Any, Place], key: Any, owner: Any) -> None:
        mine, caller = calling_places(2)
        place = caller or mine
        if place is not None:
            table[key] = place
            self._alive.append(owner)  # an id stays unique only while its object lives


class BuildFacts:
    """`never_written`: names of parameters and buffers whose memory came from torch.empty and was never filled."""

    def __init__(self, never_written: set[str], places: dict[str, Place], optimizers: dict[int, Place]) -> None:
        self.never_written = never_written
        self._places = places
        self._optimizers = optimizers

    def registered_at(self, name: str) -> SourceSpan | None:
        """The user's line that put parameter `name` into its module."""
        place = self._places.get(name)
        return resolve(*place) if place else None

    def optimizer_built_at(self, optimizer: torch.optim.Optimizer) -> SourceSpan | None:
        """The user's line that made `optimizer`."""
        place = self._optimizers.get(id(optimizer))
        return resolve(*place) if place else None


def _named(model: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _storage(tensor: torch.Tensor) -> int | None:
    if is_lazy(tensor) or tensor.layout != torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)
