"""Tensors that live longer than a step and still hang on its graph: hidden states, buffers,
variables of the loss function.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from types import FunctionType, MethodType
from typing import Any

import torch

from nanodoc.facts.graph import CarriedFacts, graph_failure
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.taps import MODULE_ASSIGNS, MODULE_REGISTERS
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.replay.objects import is_stateful
from nanodoc.trace.cuts import GradFlow
from nanodoc.trace.files import line_span
from nanodoc.trace.flow import FlowLog
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.spans import Place, calling_places, resolve, resolved
from nanodoc.trace.stores import (
    stored_as_attribute,
    stored_in_closure,
    stored_in_function,
)

_DEPTH = 3
_MOST_ITEMS = 4096
_MOST_NODES = 200_000
_MOST_ASKED = 2000  # nodes of one tensor that are asked whether they are freed
_OTHERS = (torch.nn.Module, torch.optim.Optimizer)
_NOT_FOUND: tuple[None, None, None, bool] = (None, None, None, False)


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
        self._freed: set[int] = set()
        self._kept: dict[tuple[int, str], Place] = {}
        self._step = recipe.train_step
        self._closures: dict[int, FunctionType] = {}
        """The function that holds a cell, by the cell's identity."""
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

    def freed(self) -> Iterator[str]:
        """The names under which tensors are kept for whose derivatives something has been freed
        that their graph had saved. `facts` tells of those first. It unpacks saved tensors, so it is
        asked only where a step is run again."""
        for name, _, _, tensor, _ in self._held():
            if any(map(_is_freed, _nodes([tensor.grad_fn], _MOST_ASKED))):
                self._freed.add(tensor._cdata)
                yield name

    @contextlib.contextmanager
    def detached(self, wanted: bool) -> Iterator[None]:
        """Cuts everything kept off its graph inside, as `.detach()` in the user's code would."""
        if not wanted:
            yield
            return
        step = self._step
        plain = getattr(step, "undo", None)
        if plain is not None:  # a script's iteration would put its objects back as it begins
            plain.restore()
            step.undo = None  # type: ignore[union-attr]  # a recovered step
        before: list[tuple[Any, Any, Any]] = []
        for name, holder, key, _, _ in list(self._held()):
            value = _value_in(holder, key)
            if value is not None and not name.startswith("the parameter"):
                before.append((holder, key, value))
                _put(holder, key, _detached(value))
        try:
            yield
        finally:
            for holder, key, value in reversed(before):
                _put(holder, key, value)
            if plain is not None:
                step.undo = plain  # type: ignore[union-attr]  # as above

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
        read; where the graph of some has been freed, those come first."""
        seen, found = set(), []
        for carried in flow.flow.carried:
            if carried.impl in seen or carried.reader not in flow.live:
                continue
            seen.add(carried.impl)
            kept = self._before.get(carried.impl, _NOT_FOUND)
            found.append((carried.impl not in self._freed, carried, kept))
        for _, carried, (name, holder, key, buffer) in sorted(found, key=lambda each: each[0]):
            place = self._kept.get((id(holder), str(key))) if holder is not None else None
            line, loop, elsewhere = resolved(place), None, False
            if line is None and name is not None:
                line, loop, elsewhere = self._stored(name, holder)
            yield CarriedFacts(
                name=name,
                reader=trace.facts(carried.reader),
                kept_at=line,
                node=carried.node,
                is_buffer=buffer,
                given_at=trace.given_at(carried.reader, -1) if line is None else None,
                loop=loop,
                elsewhere=elsewhere,
            )

    def _stored(self, name: str, holder: Any) -> tuple[SourceSpan | None, SourceSpan | None, bool]:
        """(the line that stores what a script keeps under `name`; the loop whose iterations are the
        steps, where that is known to be outside of it; where that is not known, True)"""
        loop = getattr(self._step, "loop", None)
        if loop is None:
            return None, None, False
        lines = range(loop.first, loop.last + 1)
        found = stored_in_function(loop.file, lines, name)
        here = found is not None
        function = self._closures.get(id(holder))
        if found is None and function is not None:
            code = function.__code__
            found = stored_in_closure(code.co_filename, code.co_firstlineno, name)
        if found is None and "." in name:
            found = stored_as_attribute(loop.file, name.rpartition(".")[2])
        if not here or found is None or loop.whole:
            return found, None, found is not None
        outside = found.line not in lines
        return found, line_span(loop.file, loop.line, "") if outside else None, False

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
            yield from self._held_by_function(function)

    def _held_by_function(
        self, function: Any
    ) -> Iterator[tuple[str, Any, Any, torch.Tensor, bool]]:
        # an iteration that is run again begins with these, whatever the names stand for now
        begun = getattr(function, "variables", {})
        seen: set[int] = set()
        for name, holder, value in (
            *((name, begun, value) for name, value in list(begun.items())),
            *(found for found in variables_of(function) if found[0] not in begun),
        ):
            for tensor in _graph_tensors(value):
                yield name, holder, name, tensor, False
            yield from self._held_inside(name, value, seen)

    def _held_inside(
        self, name: str, value: Any, seen: set[int], depth: int = _DEPTH
    ) -> Iterator[tuple[str, Any, Any, torch.Tensor, bool]]:
        """By objects of the user's own classes, and by functions in the variables around them."""
        if id(value) in seen or not depth:
            return
        seen.add(id(value))
        owner = getattr(value, "__self__", None) if isinstance(value, MethodType) else value
        function = getattr(value, "__func__", value)
        if isinstance(function, FunctionType):
            for free, cell, inner in _cells(function):
                self._closures.setdefault(id(cell), function)
                for tensor in _graph_tensors(inner):
                    yield free, cell, free, tensor, False
                yield from self._held_inside(free, inner, seen, depth - 1)
        if owner is not None and is_stateful(owner) and not isinstance(owner, _OTHERS):
            for key, inner in list(vars(owner).items()):
                for tensor in _graph_tensors(inner):
                    yield f"{name}.{key}", vars(owner), key, tensor, False
                yield from self._held_inside(f"{name}.{key}", inner, seen, depth - 1)


def freed_in(recipe: Recipe) -> str | None:
    """The name under which a tensor is kept whose graph has been freed; None where there is
    none."""
    return next(KeptTensors(recipe).freed(), None)


def _is_freed(node: Any) -> bool:
    kind: Any = type(node)
    for name in _saved_names(kind):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if graph_failure(str(error)) == "backward-twice":
                return True
        except Exception:  # an unpack hook of the script's
            continue
    return False


@cache
def _saved_names(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _cells(function: FunctionType) -> Iterator[tuple[str, Any, Any]]:
    """(name, cell, value) of the variables around a function."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            yield name, cell, cell.cell_contents


def _value_in(holder: Any, key: Any) -> Any:
    return holder.get(key) if isinstance(holder, dict) else holder.cell_contents


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[key] = value
    else:
        holder.cell_contents = value


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
    return sum(1 for _ in _nodes(roots, _MOST_NODES))


def _nodes(roots: list[Any], most: int) -> Iterator[Any]:
    """The autograd nodes behind these, each once."""
    seen: set[Any] = set()
    queue = list(roots)
    while queue and len(seen) < most:
        node = queue.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            queue.extend(following for following, _ in node.next_functions)


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
