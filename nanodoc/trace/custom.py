"""The user's own autograd functions: what their backward returned for each input, seen before autograd mends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from nanodoc.graph_evidence import CutFacts
from nanodoc.trace.functions import return_statement
from nanodoc.trace.graph import StepTrace


class CustomNodes:
    """Hooks on the nodes of custom autograd functions below a loss. They only look."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._known: set[Any] = set()
        self._handles: list[Any] = []
        self._returned: list[tuple[Any, int, tuple[int, ...] | None, torch.dtype | None]] = []

    def watch(self, loss: torch.Tensor) -> None:
        """Finds the custom nodes below `loss`; to be called before its backward."""
        queue: list[Any] = [loss.grad_fn]
        while queue:
            node = queue.pop()
            if node is None or node in self._known:
                continue
            self._known.add(node)
            if isinstance(node, BackwardCFunction):
                self._nodes.append(node)
                self._handles.append(node.register_hook(self._hook(node)))
            queue.extend(following for following, _ in node.next_functions)

    def _hook(self, node: Any) -> Any:
        def look(grad_inputs: Any, grad_outputs: Any) -> None:
            for position, grad in enumerate(grad_inputs):
                self._returned.append((node, position, None if grad is None else tuple(grad.shape), None if grad is None else grad.dtype))

        return look

    def remove(self) -> None:
        """Takes every hook off."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._known = set()

    def losing(self, trace: StepTrace, parameters: dict[str, torch.nn.Parameter], lost: list[str]) -> list[CutFacts]:
        """The functions that returned None for an input behind which lost parameters lie."""
        names = {id(parameter): name for name, parameter in parameters.items() if name in lost}
        found = []
        for node, position, shape, _ in self._returned:
            edges = node.next_functions
            if shape is not None or position >= len(edges) or edges[position][0] is None:
                continue
            behind = sorted({names[i] for i in _leaves(edges[position][0]) if i in names}, key=lost.index)
            index = _applied_at(trace, node)
            if behind and index is not None:
                returned = return_statement(_backward_of(node))
                found.append(CutFacts(op=trace.facts(index), kind="custom-function", orphans=tuple(behind), returned_at=returned))
        return found

    def mismatches(self, trace: StepTrace) -> Iterator[dict[str, Any]]:
        """Gradients whose shape or dtype differs from the input's (autograd sums or casts them silently, or raises)."""
        for node, position, shape, dtype in self._returned:
            edges = node.next_functions
            if shape is None or position >= len(edges) or edges[position][0] is None:
                continue
            following, number = edges[position]
            try:
                expected = following._input_metadata[number]
                wanted, wanted_dtype = tuple(expected.shape), expected.dtype
            except (AttributeError, IndexError, RuntimeError):
                continue
            if wanted != shape or wanted_dtype != dtype:
                index = _applied_at(trace, node)
                yield {
                    "op": trace.facts(index) if index is not None else None,
                    "node": node.name(),
                    "position": position,
                    "expected": f"{list(wanted)} {str(wanted_dtype).removeprefix('torch.')}",
                    "got": f"{list(shape)} {str(dtype).removeprefix('torch.')}",
                    "returned_at": return_statement(_backward_of(node)),
                }


def _backward_of(node: Any) -> Any:
    return getattr(getattr(type(node), "_forward_cls", None), "backward", None)


def _applied_at(trace: StepTrace, node: Any) -> int | None:
    """The first op inside the function's forward: it runs right after the node is made."""
    sequence = node._sequence_nr()
    return next((i for i, r in enumerate(trace.records) if r.phase == "forward" and r.sequence == sequence), None)


def _leaves(node: Any) -> set[int]:
    """The ids of the leaves that gradient through `node` would reach."""
    found: set[int] = set()
    seen: set[Any] = set()
    queue = [node]
    while queue:
        current = queue.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        variable = getattr(current, "variable", None)
        if variable is not None:
            found.add(id(variable))
        queue.extend(following for following, _ in current.next_functions)
    return found
