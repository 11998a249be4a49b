"""State that a recipe's functions reach by name: a teacher model, a second optimizer, a queue, a
counter. It moves with the run, too.

Copied only when a step is to be run again. What cannot be put back (an iterator, more than a
gigabyte) is named, so that nothing is concluded from a step that depends on it.
"""

from __future__ import annotations

import contextlib
import io
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import ref

import torch

from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import code_of, variables_of
from nanodoc.replay.objects import (
    CONTAINERS,
    LONGEST,
    PLAIN,
    SUSPENDED,
    attributes,
    contents,
    is_stateful,
)
from nanodoc.replay.optimizers import copy_optimizer, restore_optimizer
from nanodoc.replay.random_sources import Restore, copy_of_source
from nanodoc.tensors.plain import without_values
from nanodoc.trace.files import LIBRARY, USER, frame_kind

_LARGEST = 1 << 30  # bytes
_DEEPEST = 4  # objects inside objects
_DEEPEST_OF_SCRIPT = 7  # a trainer keeps its counters deep inside
_MOST_HELPERS, _DEEPEST_HELPERS = 100, 2  # of a table of functions, and of tables in it
_MOST = 20_000  # objects
_MOST_OF_LIBRARY = 2000  # of an installed package's; of a recipe's step the first are enough


def reachable(recipe: Recipe) -> list[Any]:
    """The values that the recipe's own functions read from outside, each once; the recipe's model
    and optimizers are not among them."""
    return list({id(value): value for _, _, value in _variables(recipe)}.values())


def _variables(recipe: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """(name, the cell or namespace that holds it, value)"""
    own = {
        id(recipe.model),
        *(id(o) for o in recipe.optimizers),
        *(id(m) for m in recipe.model.modules()),
    }
    waiting = [f for f in (recipe.loss_fn, recipe.criterion, recipe.train_step) if f is not None]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for name, holder, value in variables_of(function):
            if id(value) not in own:
                yield name, holder, value
            waiting += _helpers_in(value)
            if _is_module_of_user(value):
                for attribute, part in _read_from(function, value):
                    waiting += _helpers_in(part)
                    if id(part) not in own and not isinstance(part, (type, types.ModuleType)):
                        yield attribute, vars(value), part


def _is_helper(value: Any) -> bool:
    """A function of the user's own, or of a library other than torch."""
    return isinstance(value, (types.FunctionType, types.MethodType)) and frame_kind(
        value.__code__.co_filename
    ) in (USER, LIBRARY)


def _helpers_in(value: Any, depth: int = 0) -> list[Any]:
    """The helpers that a value is or holds: in a table of functions, or as a partial's function."""
    if _is_helper(value):
        return [value]
    if isinstance(value, partial):
        parts: Iterable[Any] = (value.func, *value.args, *value.keywords.values())
    elif type(value) in (dict, list, tuple) and len(value) <= _MOST_HELPERS:
        parts = value.values() if isinstance(value, dict) else value
    else:
        return []
    if depth == _DEEPEST_HELPERS:
        return []
    return [helper for part in parts for helper in _helpers_in(part, depth + 1)]


def _is_module_of_user(value: Any) -> bool:
    file = getattr(value, "__file__", None) if isinstance(value, types.ModuleType) else None
    return isinstance(file, str) and frame_kind(file) == USER


def _read_from(function: Any, module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The names of a module that a function may read as attributes: its code names them."""
    waiting: list[Any] = [code_of(function)]
    names: set[str] = set()
    while waiting:
        code = waiting.pop()
        if isinstance(code, types.CodeType):
            names |= set(code.co_names)
            waiting += code.co_consts
    for name in names & vars(module).keys():
        yield name, vars(module)[name]


def kept_state(recipe: Recipe) -> KeptState | None:
    """`KeptState`, while the run goes on: whatever goes wrong is not the run's business."""
    try:
        return KeptState(recipe)
    except Exception:
        return None


class KeptState:
    """Copies of what the recipe's functions reach. `lost` names what could not be copied."""

    def __init__(self, recipe: Recipe) -> None:
        state = ReachedState(recipe)
        self.lost = state.lost
        self._restores: list[Restore] = []
        for name, copy in state.copies:
            try:
                self._restores.append(copy())
            except Exception:  # an object of the user's that can't be copied after all
                self.lost.append(name)

    def restore(self) -> None:
        """Puts everything back as it was when this was made. What cannot be put back stays as it
        is: the rest must not suffer for it."""
        for restore in self._restores:
            with contextlib.suppress(Exception):
                restore()


class KeptNetworks:
    """Copies, in the host's memory, of parameters and buffers of networks beside the model."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kept = [(tensor, tensor.detach().to("cpu", copy=True)) for tensor in tensors]

    def restore(self) -> None:
        """Puts the values back."""
        for tensor, before in self._kept:
            tensor.data.copy_(before)


class NetworksBeside:
    """The networks beside the model that the recipe's functions reach and that steps move: targets
    and averages. A teacher that stands still is not copied."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._sums: dict[int, tuple[ref[torch.Tensor], float]] = {}
        self._moved: set[int] = set()
        self.bytes = 0
        """What the last copies took."""

    def kept(self) -> KeptNetworks:
        """Copies of those that have moved since this was asked for the first time."""
        state = ReachedState(self._recipe)
        known = {id(t): t for _, m in state.modules for t in (*m.parameters(), *m.buffers())}
        beside = {
            key: tensor
            for key, tensor in known.items()
            if not (key in state.own or not _can_be_written(tensor) or tensor.is_complex())
        }
        wanted = []
        for (key, tensor), total in zip(beside.items(), _sums(beside.values()), strict=True):
            held, before = self._sums.get(key, (None, total))
            if held is None or held() is not tensor:
                self._moved.discard(key)
                self._sums[key] = ref(tensor), total
            elif total != before:
                self._moved.add(key)
            if key in self._moved:
                wanted.append(tensor)
        self.bytes = sum(tensor.nbytes for tensor in wanted)
        return KeptNetworks(wanted if state.copies else ())


def _sums(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Of each; the host waits once for a device."""
    sums = [tensor.detach().sum(dtype=torch.float32) for tensor in tensors]
    if len({one.device for one in sums}) > 1:
        return [float(one) for one in sums]
    return torch.stack(sums).tolist() if sums else []


class ReachedState:
    """What the recipe's functions reach, not copied yet. `copies` holds (name, function that makes
    the copy and returns what puts it back); `lost` names what can't be copied."""

    def __init__(self, recipe: Recipe) -> None:
        model = recipe.model
        self.own = {id(p) for p in (*model.parameters(), *model.buffers())}
        self.own |= {id(m) for m in model.modules()} | {id(o) for o in recipe.optimizers}
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self.modules: list[tuple[str, torch.nn.Module]] = []
        """Those beside the model, by name."""
        self.copies: list[tuple[str, Callable[[], Restore]]] = []
        self._seen: set[int] = set()
        self._of_library = 0
        self._bytes = 0
        self.lost: list[str] = []
        # the step of a script: what it draws from iterators is kept, and it may be a library's loop
        self._of_script = getattr(recipe.train_step, "of_script", False)
        self._deepest = _DEEPEST_OF_SCRIPT if self._of_script else _DEEPEST
        for name, holder, value in _variables(recipe):
            self.copies.append((name, partial(_binding, name, holder, value)))
            try:
                self._visit(name, value, 0)
            except Exception:  # an object of the user's may answer any question with an exception
                self.lost.append(f"{name} (a {type(value).__name__})")
        tensors = [(n, t) for n, t in self._tensors.values() if _can_be_written(t)]
        size = self._bytes + sum(t.numel() * t.element_size() for _, t in tensors)
        if size > _LARGEST or len(self._seen) > _MOST:
            # all of it or nothing: weights must not be put back without their optimizer's state
            what = "tensors" if size > _LARGEST else "objects"
            number = f"{size / (1 << 30):.1f} GiB of" if size > _LARGEST else f"more than {_MOST}"
            self.lost.append(f"{number} {what} outside the model")
            self.copies = []
            return
        self.copies += [(name, partial(_values, tensor)) for name, tensor in tensors]

    @property
    def floating(self) -> list[torch.Tensor]:
        """The leaves of floating values; none where they are too many to be copied."""
        return [
            tensor
            for _, tensor in self._tensors.values()
            if self.copies and tensor.is_floating_point() and tensor.is_leaf
            if _can_be_written(tensor) and not tensor.is_inference()
        ]

    def _visit(self, name: str, value: Any, depth: int, *, library: bool = False) -> None:
        """`library`: it was reached through an object of an installed package, whose own iterators
        and threads are no part of the step."""
        if isinstance(value, PLAIN) or id(value) in self.own or depth > self._deepest:
            return
        if id(value) in self._seen or len(self._seen) > _MOST:
            return
        if library and not self._of_script and not self._is_looked_into(value):
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._tensors[id(value)] = (name, value)
        elif isinstance(value, torch.nn.Module):
            self._module(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(name, value)
        elif (copy := _copy_of(value)) is not None:
            self._bytes += getattr(value, "nbytes", 0)
            self.copies.append((name, partial(copy, value)))
        elif isinstance(value, CONTAINERS):
            self._container(name, value, depth, library=library)
        elif hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
            if not self._of_script and not library:
                self.lost.append(f"{name} (a {type(value).__name__})")
        elif is_stateful(value, libraries=True):
            self._object(name, value, depth, library=library or not is_stateful(value))

    def _is_looked_into(self, value: Any) -> bool:
        """An installed package's object is looked into for what a step changes, counters and flags;
        its data is its own, and so is what is beyond the first few thousand objects."""
        self._of_library += 1
        data = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
        return self._of_library <= _MOST_OF_LIBRARY and not (
            isinstance(value, data) or hasattr(value, "nbytes")
        )

    def _module(self, name: str, module: torch.nn.Module) -> None:
        self.modules.append((name, module))
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in self.own:
                self._tensors[id(tensor)] = (name, tensor)
        self.copies += [(name, partial(_flag, inner)) for inner in module.modules()]

    def _optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        self.copies.append((name, partial(_optimizer, optimizer)))
        for state in optimizer.state.values():
            held = state.values() if isinstance(state, dict) else ()
            self._bytes += sum(t.nbytes for t in held if isinstance(t, torch.Tensor))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self.own:
                    self._tensors[id(parameter)] = (name, parameter)

    def _container(self, name: str, value: Any, depth: int, *, library: bool) -> None:
        if len(value) > LONGEST:
            return
        self.copies.append((name, partial(contents, value)))
        for inner in list(dict.values(value) if isinstance(value, dict) else value):
            self._visit(f"{name}[…]", inner, depth + 1, library=library)

    def _object(self, name: str, value: Any, depth: int, *, library: bool) -> None:
        held = dict(vars(value))
        if not (library and not self._of_script) and any(
            isinstance(inner, threading.Thread) for inner in held.values()
        ):
            self.lost.append(f"{name} (a {type(value).__name__} with a thread)")
            return
        self.copies.append((name, partial(attributes, value)))
        for key, inner in held.items():
            self._visit(f"{name}.{key}", inner, depth + 1, library=library)


def _can_be_written(tensor: torch.Tensor) -> bool:
    """It has values in memory of its own. Those of an expanded tensor share memory, so that nobody
    can have written to it in place."""
    if tensor.layout is not torch.strided or without_values(tensor):
        return False
    return not any(
        size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _binding(name: str, holder: Any, value: Any) -> Restore:
    """The name stands for the same value again: `global count; count += 1` binds it anew."""
    suspended = isinstance(value, SUSPENDED)
    held = [ref(value) if suspended else value]

    def restore() -> None:
        known = held[0]() if suspended else held[0]
        if suspended and known is None:
            return
        if isinstance(holder, dict):
            if holder.get(name) is not known:
                holder[name] = known
        elif holder.cell_contents is not known:
            holder.cell_contents = known

    return restore


def _copy_of(value: Any) -> Callable[[Any], Restore] | None:
    """How to copy a source of random numbers, or an array; None for anything else."""
    if f"{type(value).__module__}.{type(value).__qualname__}" == "numpy.ndarray":
        return _array if value.nbytes <= _LARGEST and value.flags.writeable else None
    return copy_of_source(value)


def _array(value: Any) -> Restore:
    before = value.copy()
    return lambda: value.__setitem__(..., before)


def _optimizer(value: torch.optim.Optimizer) -> Restore:
    before = copy_optimizer(value)
    return lambda: restore_optimizer(value, before)


def _flag(module: torch.nn.Module) -> Restore:
    before = module.training

    def restore() -> None:
        module.training = before

    return restore


def _values(tensor: torch.Tensor) -> Restore:
    before, grad = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None

    def restore() -> None:
        with torch.no_grad():
            # written only where it changed: memory that is mapped from a file may not be written to
            if not torch.equal(tensor.detach(), before):
                tensor.data.copy_(before)
        if tensor.is_leaf:
            tensor.grad = grad

    return restore
