"""The networks that a step calls, and what each was given: the whole model, the models that are
trained together (actor and critic, generator and discriminator), or the parts of a model that the
step calls one after the other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.instrument.originals import ours
from nanodoc.tensors.nested import batch_size, takes_hooks

_MOST = 64  # modules that are listened to
_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)


@dataclass(slots=True)
class NetworkCall:
    """A call of a network: what it was given, and under which autocast."""

    path: str
    """Of the network in the model; "" for the whole model."""
    network: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: tuple[bool, torch.dtype]

    @property
    def size(self) -> int | None:
        """The length of the first dimension that most of its tensors share."""
        return batch_size(self.given)

    @property
    def given(self) -> list[Any]:
        """All its arguments."""
        return [*self.args, *self.kwargs.values()]


@dataclass(slots=True)
class NetworkCalls:
    """Of each network the first call with more than one row, none of which is a part of another."""

    found: dict[str, NetworkCall] = field(default_factory=dict)
    _handles: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def caught(
        self, model: torch.nn.Module, device: torch.device, *, parts: bool
    ) -> Iterator[NetworkCalls]:
        """Remembers the calls inside; `parts`: those of a model's parts, too, where the step does
        not call it as a whole."""
        for path, network in _networks(model, parts=parts):
            if takes_hooks(network):
                catch = self._catching(path, device)
                self._handles[path] = network.register_forward_pre_hook(catch, with_kwargs=True)
        try:
            yield self
        finally:
            self._let_go("")

    def _catching(self, path: str, device: torch.device) -> Callable[..., None]:
        @ours
        def catch(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = NetworkCall(
                path,
                module,
                mapped(args, _without_graph),
                mapped(kwargs, _without_graph),
                (
                    torch.is_autocast_enabled(device.type),
                    torch.get_autocast_dtype(device.type),
                ),
            )
            enough = call.size not in (0, 1)  # an agent acts on one observation at a time
            if enough or path not in self.found:
                self.found[path] = call
            for part in [name for name in self.found if name != path and _inside(name, path)]:
                del self.found[part]
            # at once: the training code may copy or pickle its model before the step is over
            self._let_go(path, itself=enough)

        return catch

    def _let_go(self, path: str, *, itself: bool = True) -> None:
        """Takes the hooks of a network's parts away."""
        for name in [n for n in self._handles if _inside(n, path) and (itself or n != path)]:
            self._handles.pop(name).remove()


def _inside(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


def _networks(model: torch.nn.Module, *, parts: bool) -> list[tuple[str, torch.nn.Module]]:
    found = [("", model)]
    if parts or isinstance(model, _CONTAINERS):
        inner = _parts(model, "")
        if parts and len(inner) <= _MOST:
            inner = [
                pair for path, part in inner for pair in ((path, part), *_parts(part, f"{path}."))
            ]
        found += inner if len(inner) <= _MOST else []
    return found


def _parts(module: torch.nn.Module, prefix: str) -> list[tuple[str, torch.nn.Module]]:
    """Its parts; of a part that only holds others, those."""
    found: list[tuple[str, torch.nn.Module]] = []
    for name, part in module.named_children():
        if isinstance(part, _CONTAINERS):
            found += _parts(part, f"{prefix}{name}.")
        else:
            found.append((f"{prefix}{name}", part))
    return found


def _without_graph(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach() if tensor.requires_grad else tensor


def mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """What a network is given with `function` applied to its tensors."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, function) for item in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(item, function) for item in value)
    if isinstance(value, dict):
        return (
            type(value)((key, mapped(item, function)) for key, item in value.items())
            if type(value) is dict
            else value
        )
    return value
