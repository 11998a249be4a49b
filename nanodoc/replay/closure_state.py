"""State that a recipe's functions reach by name: a teacher model, a second optimizer, a queue, a
counter. It moves with the run, too.

Copied only when a step is to be run again. What cannot be put back (an iterator, more than a
gigabyte) is named, so that nothing is concluded from a step that depends on it.
"""

from __future__ import annotations

import io
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.replay.optimizers import copy_optimizer, restore_optimizer
from nanodoc.tensors.plain import without_values
from nanodoc.trace.files import LIBRARY, USER, frame_kind

_LARGEST = 1 << 30  # bytes
_LONGEST = 1000  # entries of a container; a longer one is data, not state
_DEEPEST = 4  # objects inside objects
_CONTAINERS = (list, deque, dict, set)
_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset)

Restore = Callable[[], None]


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
            if _is_helper(value):
                waiting.append(value)


def _is_helper(value: Any) -> bool:
    """A function of the user's own, or of a library other than torch."""
    return isinstance(value, (types.FunctionType, types.MethodType)) and frame_kind(
        value.__code__.co_filename
    ) in (USER, LIBRARY)


class KeptState:
    """Copies of what the recipe's functions reach. `lost` names what could not be copied."""

    def __init__(self, recipe: Recipe) -> None:
        state = ReachedState(recipe)
        self.lost = state.lost
        self._restores = [copy() for copy in state.copies()]

    def restore(self) -> None:
        """Puts everything back as it was when this was made."""
        for restore in self._restores:
            restore()


class ReachedState:
    """What the recipe's functions reach, not copied yet. `lost` names what can't be."""

    def __init__(self, recipe: Recipe) -> None:
        model = recipe.model
        self._own = {id(p) for p in (*model.parameters(), *model.buffers())}
        self._own |= {id(m) for m in model.modules()} | {id(o) for o in recipe.optimizers}
        self._tensors: dict[int, torch.Tensor] = {}
        self._copies: list[Callable[[], Restore]] = []
        self._seen: set[int] = set()
        self.lost: list[str] = []
        for name, holder, value in _variables(recipe):
            self._copies.append(partial(_binding, name, holder, value))
            try:
                self._visit(name, value, 0)
            except Exception:  # an object of the user's may answer any question with an exception
                self.lost.append(f"{name} (a {type(value).__name__})")
        tensors = [t for t in self._tensors.values() if not without_values(t)]
        size = sum(t.numel() * t.element_size() for t in tensors)
        if size > _LARGEST:
            self.lost.append(f"{size / (1 << 30):.1f} GiB of tensors outside the model")
            return
        self._copies += [partial(_values, t) for t in tensors if t.layout is torch.strided]

    def copies(self) -> list[Callable[[], Restore]]:
        """Each makes one copy, and returns the function that puts it back."""
        return self._copies

    def _visit(self, name: str, value: Any, depth: int) -> None:
        if id(value) in self._seen or id(value) in self._own or depth > _DEEPEST:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            self._tensors[id(value)] = value
        elif isinstance(value, torch.nn.Module):
            self._module(value)
        elif isinstance(value, torch.optim.Optimizer):
            self._copies.append(partial(_optimizer, value))
            for group in value.param_groups:
                self._tensors.update({id(p): p for p in group["params"] if id(p) not in self._own})
        elif (draws := _source_of(value)) is not None:
            self._copies.append(partial(draws, value))
        elif type(value) in _CONTAINERS:
            self._container(name, value, depth)
        elif hasattr(value, "__next__") and not isinstance(value, io.IOBase):
            self.lost.append(f"{name} (a {type(value).__name__})")
        elif _is_users(value):
            self._copies.append(partial(_attributes, value))
            for key, inner in vars(value).items():
                self._visit(f"{name}.{key}", inner, depth + 1)

    def _module(self, module: torch.nn.Module) -> None:
        for tensor in (*module.parameters(), *module.buffers()):
            if id(tensor) not in self._own:
                self._tensors[id(tensor)] = tensor
        for inner in module.modules():
            self._copies.append(partial(_flag, inner))

    def _container(self, name: str, value: Any, depth: int) -> None:
        if len(value) > _LONGEST:
            return
        self._copies.append(partial(_contents, value))
        for inner in list(value.values() if type(value) is dict else value):
            self._visit(f"{name}[…]", inner, depth + 1)


def _is_users(value: Any) -> bool:
    """An object of a class of the user's own, which may count or remember."""
    if isinstance(value, (type, types.ModuleType, *_DATA)) or not hasattr(value, "__dict__"):
        return False
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return False
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return file is not None and frame_kind(file) == USER


def _binding(name: str, holder: Any, value: Any) -> Restore:
    """The name stands for the same value again: `global count; count += 1` binds it anew."""

    def restore() -> None:
        if not isinstance(holder, dict):
            holder.cell_contents = value
        elif holder.get(name) is not value:
            holder[name] = value

    return restore


def _source_of(value: Any) -> Callable[[Any], Restore] | None:
    """How to copy a source of random numbers, or an array; None for anything else."""
    if isinstance(value, torch.Generator):
        return _torch_generator
    if isinstance(value, random.Random):
        return _python_generator
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if kind == "numpy.ndarray":
        return _array if value.nbytes <= _LARGEST and value.flags.writeable else None
    return {
        "numpy.random._generator.Generator": _numpy_generator,
        "numpy.random.mtrand.RandomState": _numpy_state,
    }.get(kind)


def _torch_generator(value: torch.Generator) -> Restore:
    before = value.get_state()

    def restore() -> None:
        value.set_state(before)

    return restore


def _python_generator(value: random.Random) -> Restore:
    before = value.getstate()
    return lambda: value.setstate(before)


def _numpy_generator(value: Any) -> Restore:
    before = value.bit_generator.state
    return lambda: setattr(value.bit_generator, "state", before)


def _numpy_state(value: Any) -> Restore:
    before = value.get_state()
    return lambda: value.set_state(before)


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


def _attributes(value: Any) -> Restore:
    before = dict(vars(value))

    def restore() -> None:
        attributes = vars(value)
        attributes.clear()
        attributes.update(before)

    return restore


def _contents(value: Any) -> Restore:
    before = value.copy()

    def restore() -> None:
        value.clear()
        if isinstance(value, (dict, set)):
            value.update(before)
        else:
            value.extend(before)

    return restore


def _values(tensor: torch.Tensor) -> Restore:
    before, grad = tensor.detach().clone(), tensor.grad if tensor.is_leaf else None

    def restore() -> None:
        with torch.no_grad():
            tensor.data.copy_(before)
        if tensor.is_leaf:
            tensor.grad = grad

    return restore
