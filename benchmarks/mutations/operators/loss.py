"""Mistakes in what is minimised."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    calls,
    is_loss_expression,
    keyword,
    loss_sums,
    losses,
    methods,
    number,
    on_a_tensor,
    operator,
    receiver,
)
from benchmarks.mutations.source import Mutation, Source, last_name

_OF_SAME_SHAPE = re.compile(
    r"^(mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div|mse|binary_cross_entropy)$"
)


@operator("loss", "sign-flipped")
def sign_flipped(source: Source) -> Iterator[Mutation]:
    for node in loss_sums(source):
        sign = "-" if isinstance(node.op, ast.Add) else "+"
        text = f"{source.segment(node.left)} {sign} {source.operand(node.right)}"
        yield source.replaced((node, text))
    for negated in source.nodes(ast.UnaryOp):
        statement = source.statement(negated)
        if isinstance(negated.op, ast.USub) and number(negated) is None:
            if is_loss_expression(source, statement) and _is_factor(source, negated):
                yield source.replaced((negated, source.segment(negated.operand)))


def _is_factor(source: Source, node: ast.UnaryOp) -> bool:
    """The sign is of a value, not of a slice or an argument."""
    parent = source.parents[node]
    return isinstance(parent, ast.stmt | ast.BinOp | ast.Attribute)


@operator("loss", "whole-loss-negated")
def negated(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        yield source.replaced((call, f"-{source.segment(call)}"))


@operator("loss", "term-dropped")
def term_dropped(source: Source) -> Iterator[Mutation]:
    for node in loss_sums(source):
        yield source.replaced((node, source.segment(node.left)))
        if isinstance(node.op, ast.Add):
            yield source.replaced((node, source.segment(node.right)))
    for added in source.nodes(ast.AugAssign):
        if is_loss_expression(source, added) and isinstance(added.op, ast.Add):
            if ".item()" not in source.segment(added):
                yield source.removed(added)


@operator("loss", "sum-for-mean")
def sum_for_mean(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "mean"):
        if is_loss_expression(source, source.statement(call)) and isinstance(
            call.func, ast.Attribute
        ):
            if on_a_tensor(call) and not call.args and not call.keywords:
                yield source.replaced((call, f"{source.segment(receiver(call))}.sum()"))
    for call in losses(source):
        functional = isinstance(call.func, ast.Attribute) and last_name(receiver(call)) == "F"
        if functional and keyword(call, "reduction") is None:
            text = source.segment(call)[:-1].rstrip().rstrip(",")
            yield source.replaced((call, f'{text}, reduction="sum")'))
    for call in calls(source, r"\w+Loss"):
        if isinstance(call.func, ast.Attribute) and not call.args and not call.keywords:
            yield source.replaced((call, f'{source.segment(call.func)}(reduction="sum")'))


@operator("loss", "weight-times-1000")
def weight_times_1000(source: Source) -> Iterator[Mutation]:
    for node in loss_sums(source):
        for term in (node.left, node.right):
            if not isinstance(term, ast.BinOp) or not isinstance(term.op, ast.Add | ast.Sub):
                yield source.replaced((term, f"1000 * {source.operand(term)}"))


@operator("loss", "arguments-swapped")
def swapped(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        first, second = call.args[:2]
        yield source.replaced((first, source.segment(second)), (second, source.segment(first)))


@operator("loss", "compared-with-itself")
def with_itself(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        if _OF_SAME_SHAPE.match(last_name(call.func)):
            first = source.operand(call.args[0])
            yield source.replaced((call.args[1], f"{first}.detach()"))


@operator("loss", "softmax-before-cross-entropy")
def softmax_twice(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        if last_name(call.func) == "cross_entropy":
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.softmax(1)"))
    for call in losses(source):
        if last_name(call.func) == "binary_cross_entropy_with_logits":
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.sigmoid()"))


@operator("loss", "target-of-another-scale")
def target_of_another_scale(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        if last_name(call.func) in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "mse"):
            second = call.args[1]
            yield source.replaced((second, f"100 * {source.operand(second)}"))


@operator("loss", "loss-of-the-first-sample")
def first_sample(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        first, second = call.args[:2]
        texts = [f"{source.operand(one)}[:1]" for one in (first, second)]
        yield source.replaced((first, texts[0]), (second, texts[1]))
