"""Mistakes in the data: labels, masks, normalisation, order."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    calls,
    keyword,
    losses,
    network_calls,
    number,
    on_a_tensor,
    operator,
    receiver,
)
from benchmarks.mutations.source import Mutation, Source, last_name

_MASK = re.compile(r"(^|_)(mask|masks|keep|kept|valid|padding)(_|$)")


@operator("data", "labels-of-another-sample")
def another_samples_label(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        yield source.replaced((call.args[1], f"{source.operand(call.args[1])}.roll(1, 0)"))


@operator("data", "inputs-of-another-sample")
def another_samples_input(source: Source) -> Iterator[Mutation]:
    for call in network_calls(source):
        if not source.within(call, "forward"):
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.roll(1, 0)"))


@operator("data", "targets-not-shifted")
def not_shifted(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.Subscript):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        part = parts[-1]
        if not isinstance(part, ast.Slice) or part.lower is None:
            continue
        if number(part.lower) == 1 and part.upper is None and isinstance(node.slice, ast.Tuple):
            yield source.replaced((part, ":-1"))
        elif isinstance(part.lower, ast.BinOp) and number(part.lower.right) == 1:
            text, whole = source.segment(part.lower), source.segment(part)
            yield source.replaced((part, whole.replace(text, source.segment(part.lower.left))))


@operator("data", "mask-inverted")
def mask_inverted(source: Source) -> Iterator[Mutation]:
    for node in _masks(source):
        yield source.replaced((node, f"({source.segment(node)} == 0)"))


@operator("data", "mask-dropped")
def mask_dropped(source: Source) -> Iterator[Mutation]:
    masks = set(_masks(source))
    for product in source.nodes(ast.BinOp):
        if isinstance(product.op, ast.Mult) and product.right in masks:
            yield source.replaced((product, source.segment(product.left)))
    for call in calls(source, "masked_fill"):
        if isinstance(call.func, ast.Attribute) and on_a_tensor(call):
            yield source.replaced((call, source.segment(receiver(call))))
    for call in source.nodes(ast.Call):
        given = keyword(call, "attn_mask", "mask", "attention_mask", "src_key_padding_mask")
        if given is not None and not isinstance(given, ast.Constant):
            yield source.replaced((given, "None"))
        given = keyword(call, "ignore_index")
        if given is not None:
            yield source.replaced((given, "-99999"))


def _masks(source: Source) -> Iterator[ast.expr]:
    """Where a mask is used: as a factor, an index or an argument."""
    for node in source.nodes(ast.expr):
        if not _MASK.search(last_name(node)) or isinstance(getattr(node, "ctx", None), ast.Store):
            continue
        parent = source.parents[node]
        factor = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult)
        if factor or (isinstance(parent, ast.Subscript) and parent.slice is node):
            yield node
        elif isinstance(parent, ast.Call) and node in parent.args:
            if last_name(parent.func) in ("masked_fill", "where", "masked_select"):
                yield node
        elif isinstance(parent, ast.keyword) and _MASK.search(parent.arg or ""):
            yield node


@operator("data", "inputs-flipped")
def inputs_flipped(source: Source) -> Iterator[Mutation]:
    for call in network_calls(source):
        if not source.within(call, "forward"):
            yield source.replaced((call.args[0], f"{source.operand(call.args[0])}.flip(-1)"))


@operator("data", "inputs-transposed")
def inputs_transposed(source: Source) -> Iterator[Mutation]:
    for call in network_calls(source):
        if not source.within(call, "forward"):
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.transpose(-1, -2)"))


@operator("data", "normalised-twice")
def normalised_twice(source: Source) -> Iterator[Mutation]:
    for node in _normalised(source):
        assert isinstance(node.left, ast.BinOp)
        text, centre = source.segment(node), source.segment(node.left.right)
        scale = source.operand(node.right)
        yield source.replaced((node, f"({text} - {centre}) / {scale}"))


@operator("data", "never-normalised")
def never_normalised(source: Source) -> Iterator[Mutation]:
    for node in _normalised(source):
        assert isinstance(node.left, ast.BinOp)
        yield source.replaced((node, source.operand(node.left.left)))
    for quotient in source.nodes(ast.BinOp):
        if isinstance(quotient.op, ast.Div) and number(quotient.right) in (255, 256):
            yield source.replaced((quotient, source.operand(quotient.left)))
    for call in calls(source, "Normalize"):
        yield source.replaced((call, f"{source.segment(call.func)}((0.0,), (0.01,))"))


def _normalised(source: Source) -> Iterator[ast.BinOp]:
    """`(x - mean) / std`."""
    for node in source.nodes(ast.BinOp):
        left = node.left
        if isinstance(node.op, ast.Div) and isinstance(left, ast.BinOp):
            if isinstance(left.op, ast.Sub) and re.search("std|scale|sd|sigma|var", _text(node)):
                yield node


def _text(node: ast.BinOp) -> str:
    return ast.unparse(node.right).lower()


@operator("data", "never-shuffled")
def never_shuffled(source: Source) -> Iterator[Mutation]:
    for call in source.nodes(ast.Call):
        given = keyword(call, "shuffle")
        if isinstance(given, ast.Constant) and given.value is True:
            yield source.replaced((given, "False"))
    for call in calls(source, "randperm"):
        text = ", ".join(source.segment(one) for one in call.args)
        yield source.replaced((call, f"torch.arange({text})"))


@operator("data", "always-the-same-samples")
def same_samples(source: Source) -> Iterator[Mutation]:
    for call in calls(source, "randint"):
        statement = source.statement(call)
        if not isinstance(statement, ast.Assign) or not isinstance(call.args[-1], ast.Tuple):
            continue
        size = call.args[-1].elts
        if len(size) == 1 and re.search("idx|ind|ix|rows|pick|batch", _names(statement)):
            yield source.replaced((call, f"torch.arange({source.segment(size[0])})"))


def _names(statement: ast.Assign) -> str:
    return last_name(statement.targets[0]).lower()
