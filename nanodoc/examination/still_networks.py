"""Networks that a step asks and does not train, such as a teacher or a reference, and whether they
are in training mode while it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from nanodoc.facts.calls import ArgumentFacts, StepCalls
from nanodoc.facts.inspection import StillFacts, UnmovedFacts
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction, DropoutBase, NormBase
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import is_plain, without_values
from nanodoc.trace.spans import Place, calling_places, resolved

DROPPING = (DropoutBase, NormBase)
"""Layers that behave otherwise in training."""

_COMPARED = 4  # parameters of a network that are compared with what they were
_LARGEST = 1 << 20  # elements of one that is

_Copies = dict[str, torch.Tensor]
"""Of a few parameters, by name."""


@dataclass(eq=False)
class _Asked:
    """One call of a module none of whose parameters any optimizer holds."""

    module: torch.nn.Module
    first: int
    place: Place | None
    last: int = 0
    noisy: dict[str, None] = field(default_factory=dict)


class FirstWeights:
    """A few weights of the networks that the first step asks and no optimizer holds, as they were
    then. The step that is run again may end before they are moved, such as behind the optimizer."""

    def __init__(self) -> None:
        # by identity, with the module kept alive: a user's module may define __eq__
        self._known: dict[int, tuple[torch.nn.Module, _Copies]] = {}

    @contextlib.contextmanager
    def noted(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        """Open while the first step runs."""
        held = held_by(optimizers)
        parts: set[int] = set()  # of networks that are known

        def called(module: torch.nn.Module, args: Any) -> None:
            if id(module) not in parts and _learns_not(module, held):
                parts.update(map(id, module.modules()))
                with torch.no_grad(), DisableTorchFunction():
                    self._known[id(module)] = module, _some_weights(module)

        if not held:
            yield
            return
        hook = torch.nn.modules.module.register_module_forward_pre_hook(ours(called))
        try:
            yield
        finally:
            hook.remove()

    def note(self, values: Iterable[Any], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """As `noted`, of all networks among `values` and their parts, asked or not: for a first
        step that computes otherwise where modules have hooks."""
        held = held_by(optimizers)
        for module in values if held else ():
            for part in module.modules() if isinstance(module, torch.nn.Module) else ():
                if _learns_not(part, held):
                    with torch.no_grad(), DisableTorchFunction():
                        self._known[id(part)] = part, _some_weights(part)

    def are_those_of(self, module: torch.nn.Module) -> bool:
        """Nothing has written into the network since: no average of others, no copy of them."""
        _, copies = self._known.get(id(module), (None, {}))
        now = dict(module.named_parameters())
        with torch.no_grad(), DisableTorchFunction():
            return bool(copies) and all(
                name in now and _same(now[name], copy) for name, copy in copies.items()
            )


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

    def found(self, calls: StepCalls, first: FirstWeights) -> tuple[StillFacts, ...]:
        """Of those that no step has moved, and whose outputs no layer that learns reads: what is
        read by one is a part of the model."""
        still = [a for a in self._asked if a.noisy and first.are_those_of(a.module)]
        return tuple(
            StillFacts(
                module_type=type(asked.module).__name__,
                layers=tuple(asked.noisy),
                asked_at=resolved(asked.place),
            )
            for asked in still
            if not _is_read(calls, asked.first, asked.last)
        )

    def unmoved(self, first: FirstWeights) -> tuple[UnmovedFacts, ...]:
        """Of all that were asked, those that no step has moved."""
        return tuple(map(_facts, (a for a in self._asked if first.are_those_of(a.module))))

    def shared(self, optimizers: Sequence[torch.optim.Optimizer]) -> tuple[UnmovedFacts, ...]:
        """Of all that were asked, those whose every parameter lies in the memory of one that an
        optimizer holds."""
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        held = {_memory(p) for group in groups for p in group["params"]} - {None}
        return tuple(
            _facts(asked)
            for asked in self._asked
            if all(_memory(parameter) in held for parameter in asked.module.parameters())
        )

    @ours
    def _called(self, module: torch.nn.Module, args: Any) -> None:
        outer = next((asked for asked in self._stack if asked is not None), None)
        if outer is None and _learns_not(module, self._held):
            own, caller = calling_places(2)
            outer = _Asked(module, self._position(), caller or own)
            self._stack.append(outer)
        else:
            self._stack.append(None)
        if outer is not None and isinstance(module, DROPPING) and _is_noisy(module):
            outer.noisy[type(module).__name__] = None

    @ours
    def _returned(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        asked = self._stack.pop() if self._stack else None
        if asked is not None and asked.module is module:
            asked.last = self._position()
            if not any(tensor.requires_grad for _, tensor in tensor_leaves(output)):
                self._asked.append(asked)


def _facts(asked: _Asked) -> UnmovedFacts:
    return UnmovedFacts(
        module_type=type(asked.module).__name__,
        first=asked.first,
        last=asked.last,
        asked_at=resolved(asked.place),
    )


def _memory(parameter: torch.Tensor) -> tuple[int, torch.Size] | None:
    """Where its values lie; None of a tensor that has none of its own."""
    if without_values(parameter) or not is_plain(parameter) or not parameter.numel():
        return None
    return parameter.data_ptr(), parameter.shape


def held_by(optimizers: Sequence[torch.optim.Optimizer]) -> set[int]:
    """The identities of the parameters that the optimizers hold."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(parameter) for group in groups for parameter in group["params"]}


def _learns_not(module: torch.nn.Module, held: set[int]) -> bool:
    own = None
    for own in module.parameters():
        if id(own) in held:
            return False
    return own is not None


def _is_noisy(module: torch.nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, DropoutBase):
        return bool(module.p > 0)
    return bool(getattr(module, "track_running_stats", False))


def _some_weights(module: torch.nn.Module) -> _Copies:
    small = {
        name: p.detach()
        for name, p in module.named_parameters()
        if not without_values(p) and is_plain(p) and p.numel() <= _LARGEST
    }
    return {name: p.clone() for name, p in islice(small.items(), _COMPARED)}


def _same(now: torch.Tensor, copy: torch.Tensor) -> bool:
    """Also of a network that has been moved to another device since, or to another type."""
    return is_plain(now) and torch.equal(now, copy.to(now))


def _is_read(calls: StepCalls, first: int, last: int) -> bool:
    """Something that the calls from `first` up to `last` made goes into a call with a leaf that
    learns, or a view of one."""
    made = set(range(first, last))
    for call in calls.calls[last:]:
        if not any(argument.made_by in made for argument in call.arguments):
            continue
        made.add(call.index)
        learning = [a for a in call.arguments if a.requires_grad]
        if any(isinstance(calls.origin(a), ArgumentFacts) for a in learning):
            return True
    return False
