"""Who holds how many bytes: parameters, gradients, optimizer state, and what autograd keeps for the
backward pass, by line."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from nanodoc import accelerator
from nanodoc.facts.crash import HeldTensor, MemoryFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.heartbeat.memory_limit import memory_limit
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import without_values
from nanodoc.trace.modules import ModuleStack
from nanodoc.trace.spans import Place, calling_places, resolved

_MOST_LINES = 5
_MOST_MODULES = 8


class SavedLog:
    """A context manager around a step: notes every tensor that autograd saves, and lets go of none
    and holds none."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._stack = ModuleStack(model)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._own = {
            _address(t) for t in (*model.parameters(), *model.buffers()) if not without_values(t)
        }
        self._seen: dict[
            int, tuple[weakref.ref[Any], int, tuple[int, ...], str, int, Place | None]
        ] = {}
        self.kept: list[tuple[int, tuple[int, ...], str, str, SourceSpan | None]] = []
        """(bytes, shape, dtype, module, line) of what was still held when the step ended."""

    def __enter__(self) -> SavedLog:
        self._stack.__enter__()
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._hooks.__exit__(kind, error, trace)
        self._stack.__exit__()
        for storage, size, shape, dtype, module, place in self._seen.values():
            if storage() is not None:
                path = self._stack.modules[module][0] if module >= 0 else ""
                self.kept.append((size, shape, dtype, path, resolved(place)))
        self._seen = {}

    @ours
    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        with DisableTorchFunction():
            address = _address(tensor)
            if address and address not in self._own:
                own, caller = calling_places(2)
                storage = tensor.untyped_storage()
                # the storage's own object comes and goes: the saved tensor lives as long as its
                # graph
                self._seen[address] = (
                    weakref.ref(tensor),
                    storage.nbytes(),
                    tuple(tensor.shape),
                    str(tensor.dtype).removeprefix("torch."),
                    self._stack.current,
                    caller or own,
                )
        return tensor


def memory_facts(
    recipe: Recipe, batches: Iterable[Any], saved: SavedLog | None, batch_size: int | None
) -> MemoryFacts:
    """The bytes of everything that is known, each memory counted once."""
    model = recipe.model
    parameters = [p for p in model.parameters() if not without_values(p)]
    state = [
        value
        for o in recipe.optimizers
        for slot in o.state.values()
        if isinstance(slot, dict)
        for value in slot.values()
    ]
    device = next((p.device for p in parameters), torch.device("cpu"))
    limit, of = memory_limit()
    if device.type != "cpu":
        there = accelerator.memory_info(device)
        limit, of = (
            there[1] if there is not None else None,
            accelerator.device_name(device) or str(device),
        )
    kept = saved.kept if saved is not None else []
    return MemoryFacts(
        parameters=_bytes(parameters),
        gradients=_bytes(p.grad for p in parameters if p.grad is not None),
        buffers=_bytes(model.buffers()),
        optimizer=_bytes(value for value in state if isinstance(value, torch.Tensor)),
        batch=_bytes(tensor for batch in batches for _, tensor in tensor_leaves(batch)),
        saved=sum(size for size, *_ in kept),
        largest=_by_line(kept),
        by_module=_by_module(kept),
        limit=limit,
        limit_of=of,
        batch_size=batch_size,
    )


def _by_line(
    kept: list[tuple[int, tuple[int, ...], str, str, SourceSpan | None]],
) -> tuple[HeldTensor, ...]:
    groups: dict[Any, list[tuple[int, tuple[int, ...], str, str, SourceSpan | None]]] = {}
    for tensor in kept:
        key = (tensor[4].file, tensor[4].line) if tensor[4] is not None else tensor[3]
        groups.setdefault(key, []).append(tensor)
    found = []
    for group in groups.values():
        largest = max(group, key=lambda tensor: tensor[0])
        found.append(
            HeldTensor(
                bytes=sum(tensor[0] for tensor in group),
                shape=largest[1],
                dtype=largest[2],
                module=largest[3] or None,
                location=largest[4],
                count=len(group),
            )
        )
    return tuple(sorted(found, key=lambda held: -held.bytes)[:_MOST_LINES])


def _by_module(
    kept: list[tuple[int, tuple[int, ...], str, str, SourceSpan | None]],
) -> tuple[tuple[str, int], ...]:
    totals: dict[str, int] = {}
    for size, _, _, module, _ in kept:
        totals[module] = totals.get(module, 0) + size
    return tuple(sorted(totals.items(), key=lambda pair: -pair[1])[:_MOST_MODULES])


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    sizes: dict[int, int] = {}
    for tensor in tensors:
        address = _address(tensor)
        if address:
            sizes[address] = tensor.untyped_storage().nbytes()
    return sum(sizes.values())


def _address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
