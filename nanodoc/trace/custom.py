"""The user's own autograd functions: what their backward returned for each input, seen before
autograd mends it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from nanodoc.facts.graph import CutFacts
from nanodoc.instrument.originals import ours
from nanodoc.trace.files import LIBRARY, SKIP, frame_kind
from nanodoc.trace.functions import return_statement
from nanodoc.trace.graph import StepTrace


class CustomNodes:
    """Looks at what the backward of custom autograd functions below a loss returns, without
    changing it."""

    def __init__(self) -> None:
        self._known: set[Any] = set()
        self._handles: list[Any] = []
        self._patched: list[tuple[Any, Any]] = []
        self._lacking: list[tuple[_Applied, list[Any]]] = []
        """(function, nodes of an input) for which None was returned."""
        self._unlike: list[tuple[_Applied, int, str, str]] = []
        """(function, position of an edge, what its input is, what was returned): before autograd
        sums or casts."""

    def watch(self, loss: torch.Tensor) -> None:
        """Finds the custom nodes below `loss`; to be called before its backward."""
        queue: list[Any] = [loss.grad_fn]
        while queue:
            node = queue.pop()
            if node is None or node in self._known:
                continue
            self._known.add(node)
            if isinstance(node, BackwardCFunction) and _is_the_users(node):
                self._handles.append(node.register_hook(ours(self._hook(node))))
                self._patch(getattr(type(node), "_forward_cls", None))
            queue.extend(following for following, _ in node.next_functions)

    def _hook(self, node: Any) -> Any:
        def look(grad_inputs: Any, grad_outputs: Any) -> None:
            edges = node.next_functions
            self._lacking.extend(
                (_Applied(node), _lasting(edges[position][0]))
                for position, grad in enumerate(grad_inputs)
                if grad is None and position < len(edges) and edges[position][0] is not None
            )

        return look

    def _patch(self, function: Any) -> None:
        """The class's own backward, since hooks on nodes only see what autograd made of its
        results."""
        original = vars(function).get("backward") if function is not None else None
        if not isinstance(original, staticmethod) or any(
            function is known for known, _ in self._patched
        ):
            return
        unlike = self._unlike

        @functools.wraps(original.__func__)
        def backward(ctx: Any, *grads: Any) -> Any:
            out = original.__func__(ctx, *grads)
            returned = out if isinstance(out, tuple) else (out,)
            edges = [
                position
                for position, (following, _) in enumerate(ctx.next_functions)
                if following is not None
            ]
            wanted = [
                grad for grad, needed in zip(returned, ctx.needs_input_grad, strict=False) if needed
            ]
            for position, grad in zip(edges, wanted, strict=False):
                if isinstance(grad, torch.Tensor):
                    expected = _expected(ctx.next_functions[position])
                    got = _described(grad.shape, grad.dtype)
                    if expected is not None and expected != got:
                        unlike.append((_Applied(ctx), position, expected, got))
            return out

        self._patched.append((function, original))
        function.backward = staticmethod(backward)

    def remove(self) -> None:
        """Takes every hook off and puts every backward back."""
        for handle in self._handles:
            handle.remove()
        for function, original in self._patched:
            function.backward = original
        self._handles, self._patched = [], []
        self._known = set()

    def losing(
        self, trace: StepTrace, parameters: dict[str, torch.nn.Parameter], lost: list[str]
    ) -> list[CutFacts]:
        """The functions that returned None for an input behind which lost parameters lie."""
        names = {id(parameter): name for name, parameter in parameters.items() if name in lost}
        found = []
        for applied, following in self._lacking:
            behind = sorted({names[i] for i in _leaves(following) if i in names}, key=lost.index)
            index = applied.at(trace)
            if behind and index is not None:
                returned = return_statement(applied.backward)
                found.append(
                    CutFacts(
                        op=trace.facts(index),
                        kind="custom-function",
                        orphans=tuple(behind),
                        returned_at=returned,
                    )
                )
        return found

    def mismatches(self, trace: StepTrace) -> Iterator[dict[str, Any]]:
        """Gradients whose shape or dtype differs from the input's (autograd sums or casts them
        silently, or raises)."""
        for applied, position, expected, got in self._unlike:
            index = applied.at(trace)
            yield {
                "op": trace.facts(index) if index is not None else None,
                "node": applied.name,
                "position": position,
                "expected": expected,
                "got": got,
                "returned_at": return_statement(applied.backward),
                "of_library": applied.kind == LIBRARY,
            }


class _Applied:
    """A node of a custom function, read while the backward runs: with torch 2.10 it cannot be read
    once its graph is freed."""

    def __init__(self, node: Any) -> None:
        self.name: str = node.name()
        self.backward = _backward_of(node)
        self.kind = _kind_of(node)
        self._sequence: int = node._sequence_nr()

    def at(self, trace: StepTrace) -> int | None:
        """The first op inside the function's forward: it runs right after the node is made."""
        return next(
            (
                i
                for i, r in enumerate(trace.records)
                if r.phase == "forward" and r.sequence == self._sequence
            ),
            None,
        )


def _expected(edge: tuple[Any, int]) -> str | None:
    """Shape and dtype of the tensor that a gradient along this edge belongs to, if known."""
    following, number = edge
    try:
        known = following._input_metadata[number]
        return _described(torch.Size(known.shape), known.dtype)
    except (AttributeError, IndexError, RuntimeError):
        return None


def _described(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def _is_the_users(node: Any) -> bool:
    """Not one of torch's own, such as the function behind a reentrant checkpoint."""
    return _kind_of(node) not in (None, SKIP)


def _kind_of(node: Any) -> int | None:
    code = getattr(_backward_of(node), "__code__", None)
    return frame_kind(code.co_filename) if code is not None else None


def _backward_of(node: Any) -> Any:
    backward = getattr(getattr(type(node), "_forward_cls", None), "backward", None)
    return getattr(backward, "__wrapped__", backward)


def _lasting(node: Any) -> list[Any]:
    """`node`, or the next ones after it that can be read once the graph is freed: a node of torch's
    own holds those that follow it."""
    found: list[Any] = []
    seen: set[Any] = set()
    queue = [node]
    while queue:
        current = queue.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        if isinstance(current, BackwardCFunction):
            queue.extend(following for following, _ in current.next_functions)
        else:
            found.append(current)
    return found


def _leaves(nodes: list[Any]) -> set[int]:
    """The ids of the leaves that gradient through `nodes` would reach."""
    found: set[int] = set()
    seen: set[Any] = set()
    queue = list(nodes)
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
