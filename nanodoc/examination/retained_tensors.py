"""Tensors that live longer than a step and still hang on its graph: hidden states, buffers,
variables of the loss function.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from nanodoc.facts.graph import CarriedFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.taps import MODULE_ASSIGNS, MODULE_REGISTERS
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.trace.cuts import GradFlow
from nanodoc.trace.flow import FlowLog
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.spans import Place, calling_places, resolve, resolved

_DEPTH = 3
_MOST_ITEMS = 4096
_MOST_NODES = 200_000


class KeptTensors:
    """Looks where tensors with a graph are kept before a step, and which lines keep new ones during
    it."""

    def __init__(self, recipe: Recipe) -> None:
        self._model = recipe.model
        self._paths = {id(module): path for path, module in recipe.model.named_modules()}
        self._functions = [
            f for f in (recipe.loss_fn, recipe.criterion, recipe.train_step) if f is not None
        ]
        # implementation → (shown name, holder, key, is a buffer)
        self._before: dict[int, tuple[str, Any, Any, bool]] = {}
        self._kept: dict[tuple[int, str], Place] = {}
        self.fresh: list[tuple[str, SourceSpan | None]] = []
        for name, holder, key, tensor, buffer in self._held():
            self._before.setdefault(tensor._cdata, (name, holder, key, buffer))

    def __enter__(self) -> KeptTensors:
        self._undo = [
            MODULE_ASSIGNS.listen(self._assigning),
            MODULE_REGISTERS.listen(self._registering),
        ]
        return self

    def __exit__(self, *exc: Any) -> None:
        for undo in self._undo:
            undo()

    def _assigning(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def assign(owner: torch.nn.Module, name: str, value: Any) -> None:
            original(owner, name, value)
            if (
                name != "training"
                and id(owner) in self._paths
                and any(True for _ in _graph_tensors(value))
            ):
                self._note(owner, name)

        return assign

    def _registering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def register_parameter(owner: torch.nn.Module, name: str, param: Any) -> None:
            original(owner, name, param)
            if param is not None and param.requires_grad and id(owner) not in self._paths:
                own, caller = calling_places(2)
                place = caller or own
                self.fresh.append((f"{type(owner).__name__}.{name}", resolved(place)))

        return register_parameter

    def detach_all(self) -> None:
        """Cuts everything kept off its graph, as `.detach()` in the user's code would. The capsule
        puts it back."""
        for name, holder, key, _, _ in list(self._held()):
            value = holder.get(key) if isinstance(holder, dict) else None
            if value is not None and not name.startswith("the parameter"):
                holder[key] = _detached(value)

    def sizes(self) -> dict[str, int]:
        """How many autograd nodes hang on what is kept under each name."""
        roots: dict[str, list[Any]] = {}
        for name, _, _, tensor, _ in self._held():
            roots.setdefault(name, []).append(tensor.grad_fn)
        return {name: _count_nodes(nodes) for name, nodes in roots.items()}

    def kept_at(self, name: str, trace: StepTrace, flow: FlowLog) -> SourceSpan | None:
        """The line that keeps a tensor under `name`: the assignment, or the op that made what is
        kept there now."""
        for held, holder, key, tensor, _ in self._held():
            if held != name:
                continue
            place = self._kept.get((id(holder), str(key)))
            if place is not None:
                return resolve(*place)
            producer = flow.producer(tensor)
            if producer is not None and producer >= 0:
                return trace.facts(producer).location
        return None

    def facts(self, trace: StepTrace, flow: GradFlow) -> Iterator[CarriedFacts]:
        """The kept tensors that the step read on the way to its loss, in the order they were
        read."""
        seen = set()
        for carried in flow.flow.carried:
            if carried.impl in seen or carried.reader not in flow.live:
                continue
            seen.add(carried.impl)
            name, holder, key, buffer = self._before.get(carried.impl, (None, None, None, False))
            place = self._kept.get((id(holder), str(key))) if holder is not None else None
            yield CarriedFacts(
                name=name,
                reader=trace.facts(carried.reader),
                kept_at=resolved(place),
                node=carried.node,
                is_buffer=buffer,
                given_at=trace.given_at(carried.reader, -1) if place is None else None,
            )

    def _note(self, owner: torch.nn.Module, name: str) -> None:
        own, caller = calling_places(2)
        place = caller or own
        if place is not None:
            for holder in (owner.__dict__, owner._buffers):
                self._kept[id(holder), name] = place

    def _held(self) -> Iterator[tuple[str, Any, Any, torch.Tensor, bool]]:
        """(shown name, the dictionary that holds it, its key there, tensor, is a buffer)"""
        for path, module in self._model.named_modules():
            where = f"{path}." if path else ""
            for key, value in list(vars(module).items()):
                if key not in ("_parameters", "_buffers", "_modules"):
                    for tensor in _graph_tensors(value):
                        yield f"{where}{key}", vars(module), key, tensor, False
            for key, value in list(module._buffers.items()):
                for tensor in _graph_tensors(value):
                    yield f"{where}{key}", module._buffers, key, tensor, True
        for function in self._functions:
            owner = getattr(function, "__self__", None)
            if (
                owner is not None
                and not isinstance(owner, torch.nn.Module)
                and hasattr(owner, "__dict__")
            ):
                for key, value in list(vars(owner).items()):
                    for tensor in _graph_tensors(value):
                        yield key, vars(owner), key, tensor, False
            yield from _held_by_function(function)


def _held_by_function(function: Any) -> Iterator[tuple[str, Any, Any, torch.Tensor, bool]]:
    for name, holder, value in variables_of(function):
        for tensor in _graph_tensors(value):
            yield name, holder, name, tensor, False


def _graph_tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    """Tensors with a graph in a value: itself, or in plain containers."""
    if isinstance(value, torch.Tensor):
        if _has_graph(value):
            yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value[:_MOST_ITEMS]:
            yield from _graph_tensors(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in list(value.values())[:_MOST_ITEMS]:
            yield from _graph_tensors(item, depth - 1)


def _has_graph(tensor: torch.Tensor) -> bool:
    try:
        return tensor.requires_grad and not tensor.is_leaf
    except RuntimeError:  # a view whose base was written to says no more: FSDP1's parameters
        return False


def _count_nodes(roots: list[Any]) -> int:
    seen: set[Any] = set()
    queue = list(roots)
    while queue and len(seen) < _MOST_NODES:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            queue.extend(following for following, _ in node.next_functions)
    return len(seen)


def _detached(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_detached, value))
    if type(value) in (list, tuple):
        return type(value)(_detached(item) for item in value)
    if type(value) is dict:
        return {key: _detached(item) for key, item in value.items()}
    return value
