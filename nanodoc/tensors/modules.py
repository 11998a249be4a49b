"""torch's layers with weights, and moving a module to a device so that optimizers, hooks and tied
parameters hold on to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from nanodoc.instrument.torch_private import privateuse1_name
from nanodoc.tensors.nested import lies_on

WEIGHING = (
    *(torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d),
    *(torch.nn.ConvTranspose1d, torch.nn.ConvTranspose2d, torch.nn.ConvTranspose3d),
)
"""Layers that multiply their input with a weight of two dimensions and more."""


_HELD = attrgetter("_modules", "_parameters")


class KnownParts:
    """The modules and parameters that a model has now. To compare them takes a third of the time,
    or less, that it takes to list its parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        self._learn()

    def _learn(self) -> None:
        self._modules = list(self._model.modules())
        held = chain.from_iterable(map(_HELD, self._modules))
        # TorchScript makes what stands for a part anew whenever it is asked for
        self._parts = list(self._now()) if all(isinstance(one, dict) for one in held) else None

    def _now(self) -> Iterator[Any]:
        held = chain.from_iterable(map(_HELD, self._modules))
        return chain.from_iterable(map(dict.values, held))

    def _are_as_known(self) -> bool:
        if self._parts is None:
            return False
        try:
            return are_the_same(self._now(), self._parts)
        except TypeError:  # no dictionaries any more
            return False

    @property
    def parameters_stay(self) -> bool:
        """The model has these parameters, and no others; layers without any may come and go."""
        if self._are_as_known():
            return True
        now = list(self._model.parameters())
        if self._parts is None:
            return len(now) == len(self._parameters)
        if not are_the_same(now, self._parameters):
            return False
        self._learn()
        return True


def are_the_same(some: Iterable[Any], others: Iterable[Any]) -> bool:
    """The very objects, as many of them, in the same order."""
    end = object()
    return all(map(is_, chain(some, (end,)), chain(others, (end,))))


def is_spread(module: torch.nn.Module) -> bool:
    """Its parameters lie on several devices, one at least an accelerator: the code that runs it
    moves what goes between them."""
    devices = {
        parameter.device for parameter in module.parameters() if parameter.device.type != "meta"
    }
    return len(devices) > 1 and any(device.type != "cpu" for device in devices)


def move_module(
    module: torch.nn.Module, device: torch.device, optimizers: Sequence[torch.optim.Optimizer] = ()
) -> None:
    """`module.to(device)`; tensors without storage stay where they are, until a step wants their
    values, and a model that the training has spread over several devices stays there.

    On CUDA a parameter stays the same object. On devices of torch's PrivateUse1 kind (Ascend's and
    others) `Module.to` may replace it, and an optimizer made before holds the old one: the
    `optimizers` are given the new parameters, with the state of the old ones.
    """
    if is_spread(module):
        return
    tensors = [*module.parameters(), *module.buffers()]
    if lies_on(tensors, device):
        return
    if not any(tensor.is_meta for tensor in tensors):
        before = dict(module.named_parameters(remove_duplicate=False))
        _to(module, device)
        _tie(module, before)
        after = dict(module.named_parameters(remove_duplicate=False))
        _relink(
            optimizers,
            {id(old): (old, after[name]) for name, old in before.items() if after[name] is not old},
        )
        return
    for tensor in tensors:
        if not tensor.is_meta:
            tensor.data = tensor.data.to(device)


def _to(module: torch.nn.Module, device: torch.device) -> None:
    """`module.to(device)`, with the parameters as the same objects also on a device of the
    PrivateUse1 kind, where torch can do that: not where something holds a weak reference to one."""
    future = torch.__future__
    before = future.get_swap_module_params_on_conversion()
    if device.type == privateuse1_name() and not before:
        future.set_swap_module_params_on_conversion(True)
        try:
            module.to(device)
        except RuntimeError:  # the rest is replaced
            pass
        finally:
            future.set_swap_module_params_on_conversion(before)
    module.to(device)


def _tie(module: torch.nn.Module, before: dict[str, torch.nn.Parameter]) -> None:
    """Parameters that were one and have been replaced one by one are one again."""
    owners: dict[int, torch.nn.Parameter] = {}
    modules = dict(module.named_modules(remove_duplicate=False))  # TorchScript has no get_submodule
    for name, old in before.items():
        path, _, last = name.rpartition(".")
        owner = modules.get(path)
        if owner is None:  # a container of parameters that names them as it likes
            continue
        new = owner._parameters[last]
        if new is not None and new is not old:
            owner._parameters[last] = owners.setdefault(id(old), new)


def _relink(
    optimizers: Sequence[torch.optim.Optimizer],
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]],
) -> None:
    """Gives optimizers the parameters that stand for those they were made with."""
    for optimizer in optimizers if replaced else ():
        for group in optimizer.param_groups:
            group["params"][:] = [
                replaced[id(p)][1] if id(p) in replaced else p for p in group["params"]
            ]
        for old, new in replaced.values():
            if old in optimizer.state:
                state = optimizer.state.pop(old)
                optimizer.state[new] = {
                    k: v.to(new.device) if isinstance(v, torch.Tensor) and v.dim() else v
                    for k, v in state.items()
                }
