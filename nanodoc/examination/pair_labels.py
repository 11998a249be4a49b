"""Labels of pairs of nodes in the prediction of links: whether the ones stand at the edges of the
graph that the network reads, or at the other pairs."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.calls import StepCalls
from nanodoc.facts.inspection import SwappedPairs
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.trace.calls import plain_name
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import BINARIES, JOINS

_ENDS = 2  # rows of a list of pairs: from and to
_FEWEST = 16  # pairs, and edges
_MOST = 32  # lists that are kept
_ALL, _NONE = 0.9, 0.1  # shares


def may_be_pairs(calls: StepCalls) -> bool:
    """The step takes rows of a list of so many pairs as a loss of its has labels."""
    sizes = {
        call.arguments[1].shape
        for call in calls.calls
        if call.name in BINARIES and len(call.arguments) > 1
    }
    shapes = {argument.shape for call in calls.calls for argument in call.arguments}
    return any(len(size) == 1 and (_ENDS, size[0]) in shapes for size in sizes)


class PairLabels(TorchFunctionMode):
    """A context manager around a step that is run again."""

    def __init__(self) -> None:
        super().__init__()
        self._lists: dict[int, torch.Tensor] = {}
        self._labels: list[tuple[torch.Tensor, Place | None]] = []
        self._made: dict[int, tuple[torch.Tensor, Place | None]] = {}

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            if isinstance(value, torch.Tensor) and len(self._lists) < _MOST:
                pairs = value.dim() == _ENDS and value.shape[0] == _ENDS
                if pairs and value.dtype is torch.int64 and value.shape[1] >= _FEWEST:
                    self._lists[id(value)] = value
        name = plain_name(func)
        if name in BINARIES and len(args) > 1 and isinstance(args[1], torch.Tensor):
            _, place = self._made.get(id(args[1]), (None, None))
            self._labels.append((args[1].detach(), place))
        out = call(func, *args, **(kwargs or {}))
        if name in JOINS and isinstance(out, torch.Tensor) and out.dim() == 1:
            own, caller = calling_places(2)
            self._made[id(out)] = out, caller or own
        return out

    @property
    def swapped(self) -> SwappedPairs | None:
        """Of the first labels, one by one, whose zeros are edges of a graph and whose ones are
        not."""
        with contextlib.suppress(Exception):  # tensors of any kind
            for labels, place in self._labels:
                found = self._of(labels, place)
                if found is not None:
                    return found
        return None

    def _of(self, labels: torch.Tensor, place: Place | None) -> SwappedPairs | None:
        ones, zeros = labels == 1, labels == 0
        if labels.dim() != 1 or not (ones.any() and zeros.any() and (ones | zeros).all()):
            return None
        lists = [*self._lists.values()]
        for pairs in (p for p in lists if p.shape[1] == len(labels)):
            for graph in (g for g in lists if g is not pairs):
                known = _are_edges(pairs, graph)
                if known[zeros].float().mean() >= _ALL and known[ones].float().mean() <= _NONE:
                    return SwappedPairs(
                        pairs=len(labels), edges=graph.shape[1], line=resolved(place)
                    )
        return None


def _are_edges(pairs: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
    """Which pairs are edges of a graph, in one direction or in the other, (pairs,)."""
    nodes = int(torch.cat([pairs, graph], 1).max()) + 1
    edges = torch.cat([graph[0] * nodes + graph[1], graph[1] * nodes + graph[0]])
    return torch.isin(pairs[0] * nodes + pairs[1], edges)
