"""Mistakes in the axes of tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    axis,
    calls,
    keyword,
    methods,
    number,
    on_a_tensor,
    operator,
    receiver,
)
from benchmarks.mutations.source import Mutation, Source


def _of_axis(source: Source, names: str, position: int = 1) -> Iterator[Mutation]:
    for call in calls(source, names):
        method = isinstance(call.func, ast.Attribute) and on_a_tensor(call)
        given = axis(call, position - method)
        if given is not None:
            yield source.replaced((given, "-1" if number(given) == 0 else "0"))


@operator("shape", "softmax-over-another-axis")
def softmax_axis(source: Source) -> Iterator[Mutation]:
    yield from _of_axis(source, "softmax|log_softmax|logsumexp|normalize|gumbel_softmax")
    for call in calls(source, "Softmax|LogSoftmax"):
        given = axis(call, 0)
        if given is not None:
            yield source.replaced((given, "-1" if number(given) == 0 else "0"))


@operator("shape", "mean-over-another-axis")
def mean_axis(source: Source) -> Iterator[Mutation]:
    yield from _of_axis(source, "mean|sum|amax|amin|norm|var|std|cumsum|prod")


@operator("shape", "joined-along-another-axis")
def joined_axis(source: Source) -> Iterator[Mutation]:
    yield from _of_axis(source, "cat|stack|concat|chunk|split")


@operator("shape", "reshape-for-permute")
def reshape_for_permute(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "permute|transpose"):
        if on_a_tensor(call) and not source.segment(call).startswith("np."):
            of = source.segment(receiver(call))
            yield source.replaced((call, f"{of}.reshape({source.segment(call)}.shape)"))


@operator("shape", "batch-for-time")
def batch_for_time(source: Source) -> Iterator[Mutation]:
    for call in source.nodes(ast.Call):
        given = keyword(call, "batch_first")
        if isinstance(given, ast.Constant) and given.value is True:
            yield source.replaced((given, "False"))


@operator("shape", "squeeze-dropped")
def squeeze_dropped(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "squeeze"):
        if on_a_tensor(call):
            yield source.replaced((call, source.segment(receiver(call))))
    for node in source.nodes(ast.Subscript):
        if isinstance(node.slice, ast.Tuple) and number(node.slice.elts[-1]) == 0:
            first = node.slice.elts[0]
            if isinstance(first, ast.Constant | ast.Slice) and not _indexed_by_value(node.slice):
                yield source.replaced((node.slice.elts[-1], ":1"))


def _indexed_by_value(index: ast.Tuple) -> bool:
    return any(isinstance(one, ast.Slice) and (one.lower or one.upper) for one in index.elts)


@operator("shape", "unsqueeze-dropped")
def unsqueeze_dropped(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "unsqueeze"):
        if on_a_tensor(call):
            yield source.replaced((call, source.segment(receiver(call))))
    for node in source.nodes(ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        if parts and isinstance(parts[-1], ast.Constant) and parts[-1].value is None:
            if all(isinstance(one, ast.Slice) for one in parts[:-1]):
                yield source.replaced((node, source.segment(node.value)))


@operator("shape", "keepdim-dropped")
def keepdim_dropped(source: Source) -> Iterator[Mutation]:
    for call in source.nodes(ast.Call):
        given = keyword(call, "keepdim", "keepdims")
        if isinstance(given, ast.Constant) and given.value is True:
            yield source.replaced((given, "False"))


@operator("shape", "first-for-last")
def first_for_last(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.Subscript):
        if isinstance(node.slice, ast.Tuple) and isinstance(node.ctx, ast.Load):
            for part in node.slice.elts:
                if number(part) == -1:
                    yield source.replaced((part, "0"))


@operator("shape", "flattened-in-another-order")
def flattened(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "flatten|reshape|view"):
        if not on_a_tensor(call) or not call.args:
            continue
        tall = call.func.attr == "flatten" and number(call.args[0]) == 1  # type: ignore[attr-defined]
        if tall or (len(call.args) == 2 and number(call.args[1]) == -1):
            of, all_of_it = source.segment(receiver(call)), source.segment(call)
            yield source.replaced((call, f"{of}.transpose(0, 1).reshape({all_of_it}.shape)"))
