"""State that a recipe's functions reach by name: a teacher model, a second optimizer, a queue. It
moves with the run, too.

Copied only when a step has failed, so that the step can be run again; what nobody can reach by name
(an environment, a file) is not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.replay.optimizers import copy_optimizer, restore_optimizer
from nanodoc.tensors.plain import without_values

_LARGEST = 1 << 30  # bytes
_LONGEST = 1000  # entries of a list; a longer one is data, not state
_CONTAINERS = (list, deque, dict)


def reachable(recipe: Recipe) -> list[Any]:
    """The values that the recipe's own functions read from outside, each once; the recipe's model
    and optimizers are not among them."""
    own = {
        id(recipe.model),
        *(id(o) for o in recipe.optimizers),
        *(id(m) for m in recipe.model.modules()),
    }
    found: dict[int, Any] = {}
    waiting = [f for f in (recipe.loss_fn, recipe.criterion, recipe.train_step) if f is not None]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for _, _, value in variables_of(function):
            if id(value) not in own:
                found[id(value)] = value
            if callable(value) and hasattr(value, "__code__"):  # a helper of the train_step
                waiting.append(value)
    return list(found.values())


class Outside:
    """The copies, and `restore` that puts them back."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    def keep(self) -> list[Callable[[], None]]:
        """One function for each thing found, that puts it back as it is now; [] where there is more
        than 1 GiB of it."""
        own = {id(p) for p in (*self._recipe.model.parameters(), *self._recipe.model.buffers())}
        tensors: dict[int, torch.Tensor] = {}
        found: list[Callable[[], None]] = []
        for value in reachable(self._recipe):
            if isinstance(value, torch.nn.Module):
                tensors.update(
                    {
                        id(t): t
                        for t in (*value.parameters(), *value.buffers())
                        if id(t) not in own and not without_values(t)
                    }
                )
                found += [_flag(module) for module in value.modules()]
            elif isinstance(value, torch.optim.Optimizer):
                state = copy_optimizer(value)
                found.append(lambda value=value, state=state: restore_optimizer(value, state))  # type: ignore[misc]  # bound now
                tensors.update(
                    {id(p): p for g in value.param_groups for p in g["params"] if id(p) not in own}
                )
            elif isinstance(value, torch.Tensor) and id(value) not in own:
                tensors[id(value)] = value
            elif type(value) in _CONTAINERS and len(value) <= _LONGEST:
                tensors.update(
                    {
                        id(t): t
                        for t in (value.values() if type(value) is dict else value)
                        if isinstance(t, torch.Tensor)
                    }
                )
                found.append(_contents(value))
        if sum(t.numel() * t.element_size() for t in tensors.values()) > _LARGEST:
            return []
        return [
            *found,
            *(_values(tensor) for tensor in tensors.values() if tensor.layout is torch.strided),
        ]


def _flag(module: torch.nn.Module) -> Callable[[], None]:
    before = module.training

    def restore() -> None:
        module.training = before

    return restore


def _contents(value: Any) -> Callable[[], None]:
    before = dict(value) if type(value) is dict else list(value)

    def restore() -> None:
        value.clear()
        if isinstance(before, dict):
            value.update(before)
        else:
            value.extend(before)

    return restore


def _values(tensor: torch.Tensor) -> Callable[[], None]:
    before, grad = tensor.detach().clone(), tensor.grad

    def restore() -> None:
        with torch.no_grad():
            tensor.data.copy_(before)
        if tensor.is_leaf:
            tensor.grad = grad

    return restore
