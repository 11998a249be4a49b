"""Networks that a step asks and does not train, such as a teacher or a reference, and whether they
are in training mode while it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.facts.calls import StepCalls
from nanodoc.facts.inspection import StillFacts
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.trace.spans import Place, calling_places, resolved

DROPPING = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
"""Layers that behave otherwise in training."""

_COMPARED = 4  # parameters of a network that are compared with what they were before the step
_LARGEST = 1 << 20  # elements of one that is


@dataclass(eq=False)
class _Asked:
    """One call of a module none of whose parameters any optimizer holds."""

    module: torch.nn.Module
    first: int
    place: Place | None
    last: int = 0
    noisy: dict[str, None] = field(default_factory=dict)
    before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @property
    def moved(self) -> bool:
        """The step has written into its weights: an average of others, a copy of them."""
        return any(not torch.equal(now, then) for now, then in self.before)


class StillNetworks:
    """Sees every module called between `begin` and `end`."""

    def __init__(self, held: set[int]) -> None:
        """`held` are the identities of the parameters that optimizers hold."""
        self._held = held
        self._stack: list[_Asked | None] = []
        self._asked: list[_Asked] = []
        self._handles: list[Any] = []
        self._position: Callable[[], int] = lambda: 0

    def begin(self, position: Callable[[], int]) -> None:
        """`position` counts the calls of the step so far."""
        self._position = position
        if not self._held:  # nobody can say what learns
            return
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._called),
            hooks.register_module_forward_hook(self._returned, always_call=True),
        ]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def found(self, calls: StepCalls) -> tuple[StillFacts, ...]:
        """Of those that the step does not move, and whose outputs no layer that learns reads: what
        is read by one is a part of the model."""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            still = [asked for asked in self._asked if asked.noisy and not asked.moved]
        return tuple(
            StillFacts(
                module_type=type(asked.module).__name__,
                layers=tuple(asked.noisy),
                asked_at=resolved(asked.place),
            )
            for asked in still
            if not _is_read(calls, asked.first, asked.last)
        )

    def _called(self, module: torch.nn.Module, args: Any) -> None:
        outer = next((asked for asked in self._stack if asked is not None), None)
        if outer is None and self._learns_not(module):
            own, caller = calling_places(2)
            outer = _Asked(module, self._position(), caller or own)
            self._stack.append(outer)
        else:
            self._stack.append(None)
        if outer is not None and isinstance(module, DROPPING) and _is_noisy(module):
            if not outer.noisy:
                outer.before = _first_weights(outer.module)
            outer.noisy[type(module).__name__] = None

    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        asked = self._stack.pop() if self._stack else None
        if asked is not None and asked.module is module:
            asked.last = self._position()
            if not any(tensor.requires_grad for _, tensor in tensor_leaves(output)):
                self._asked.append(asked)

    def _learns_not(self, module: torch.nn.Module) -> bool:
        own = [id(parameter) for parameter in module.parameters()]
        return bool(own) and not any(key in self._held for key in own)


def _is_noisy(module: torch.nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    return bool(getattr(module, "track_running_stats", False))


def _first_weights(module: torch.nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    small = [p for p in module.parameters() if p.numel() <= _LARGEST][:_COMPARED]
    return [(p.detach(), p.detach().clone()) for p in small]


def _is_read(calls: StepCalls, first: int, last: int) -> bool:
    """Something that the calls from `first` up to `last` made goes into a call with a leaf that
    learns."""
    made = set(range(first, last))
    for call in calls.calls[last:]:
        if not any(argument.made_by in made for argument in call.arguments):
            continue
        made.add(call.index)
        if any(a.made_by is None and a.requires_grad for a in call.arguments):
            return True
    return False
