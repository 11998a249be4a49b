"""Weights in memory that several processes share (Hogwild): while steps are run again, this process
has copies of its own in their place, so that nothing is written that another process reads."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import without_values


def shared_parameter(model: torch.nn.Module) -> str | None:
    """The name of a parameter in the host's memory that other processes may read and write."""
    return next((name for name, p in model.named_parameters() if _is_shared(p)), None)


class OwnMemory:
    """`begin` puts the copies in place, `end` the shared memory."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._shared: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self) -> None:
        """Nothing is written to shared memory from now on."""
        if self._shared:
            return
        tensors = {id(tensor): tensor for tensor in _reached(self._recipe) if _is_shared(tensor)}
        for tensor in tensors.values():
            self._shared.append((tensor, tensor.data))
            tensor.data = tensor.data.clone()

    def end(self) -> None:
        """The tensors are the shared ones again, with what other processes have made of them."""
        for tensor, data in self._shared:
            tensor.data = data
        self._shared = []


def _reached(recipe: Recipe) -> Iterator[torch.Tensor]:
    """Weights, buffers, gradients and what the optimizers keep."""
    yield from recipe.model.buffers()
    parameters = list(recipe.model.parameters())
    for optimizer in recipe.optimizers:
        parameters += [p for group in optimizer.param_groups for p in group["params"]]
        for state in list(optimizer.state.values()):
            yield from (tensor for _, tensor in tensor_leaves(state))
    for parameter in parameters:
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad


def _is_shared(tensor: torch.Tensor) -> bool:
    plain = tensor.layout is torch.strided and not tensor.is_nested and not without_values(tensor)
    return plain and tensor.device.type == "cpu" and tensor.is_shared()
