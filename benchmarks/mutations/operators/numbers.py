"""Mistakes that show in floating-point numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    axis,
    calls,
    keyword,
    losses,
    methods,
    network_calls,
    number,
    on_a_tensor,
    operator,
    receiver,
)
from benchmarks.mutations.source import Mutation, Source, last_name


@operator("numbers", "epsilon-dropped")
def epsilon_dropped(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add) and _is_small(node.right):
            yield source.replaced((node, source.operand(node.left)))
    for call in methods(source, "clamp|clamp_min|clamp_|clip"):
        given = keyword(call, "min") or (call.args[0] if call.args else None)
        if given is not None and on_a_tensor(call) and _is_small(given):
            yield source.replaced((call, source.segment(receiver(call))))
    for call in source.nodes(ast.Call):
        given = keyword(call, "eps")
        if given is not None and not isinstance(given, ast.Name):
            yield source.replaced((given, "0.0"))


def _is_small(node: ast.AST) -> bool:
    said = number(node)
    return (said is not None and 0 < said <= 1e-3) or last_name(node).lower().endswith("eps")


@operator("numbers", "variance-as-a-difference")
def difference_of_squares(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "var|std"):
        if not on_a_tensor(call):
            continue
        of = source.segment(receiver(call))
        given = axis(call, 0)
        kept = ", keepdim=True" if keyword(call, "keepdim") is not None else ""
        inside = "" if given is None else f"{source.segment(given)}{kept}"
        text = f"({of}.pow(2).mean({inside}) - {of}.mean({inside}).pow(2))"
        yield source.replaced((call, f"{text}.sqrt()" if last_name(call.func) == "std" else text))


@operator("numbers", "half-precision")
def half_precision(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "exp|pow|square|cumsum|cumprod|softplus"):
        if on_a_tensor(call):
            of = source.segment(receiver(call))
            rest = source.segment(call)[len(of) :]
            yield source.replaced((call, f"{of}.half(){rest}.float()"))
        elif call.args:
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.half()"))
    for call in network_calls(source):
        if not source.within(call, "forward"):
            first = call.args[0]
            yield source.replaced((first, f"{source.operand(first)}.half()"))


@operator("numbers", "log-of-softmax-by-hand")
def log_of_softmax(source: Source) -> Iterator[Mutation]:
    for call in calls(source, "log_softmax"):
        method = isinstance(call.func, ast.Attribute) and on_a_tensor(call)
        of = source.operand(receiver(call) if method else call.args[0])
        given = axis(call, 0 if method else 1)
        if given is not None:
            summed = f"{of}.exp().sum({source.segment(given)}, keepdim=True)"
            yield source.replaced((call, f"({of}.exp() / {summed}).log()"))
    for call in losses(source):
        if last_name(call.func) == "cross_entropy" and not call.keywords:
            first = source.operand(call.args[0])
            by_hand = f"({first}.exp() / {first}.exp().sum(1, keepdim=True)).log()"
            text = source.segment(call.func).replace("cross_entropy", "nll_loss")
            second = source.segment(call.args[1])
            yield source.replaced((call, f"{text}({by_hand}, {second})"))


@operator("numbers", "logsumexp-by-hand")
def logsumexp(source: Source) -> Iterator[Mutation]:
    for call in calls(source, "logsumexp"):
        if isinstance(call.func, ast.Attribute) and not on_a_tensor(call):
            of = source.operand(call.args[0])
        else:
            of = source.segment(receiver(call))
        given = axis(call, 1) or axis(call, 0)
        if given is not None:
            text = f"{of}.exp().sum({source.segment(given)}).log()"
            yield source.replaced((call, text))


@operator("numbers", "root-at-zero")
def root_at_zero(source: Source) -> Iterator[Mutation]:
    """A distance whose root has no gradient where it is zero."""
    for call in calls(source, "sqrt"):
        inner = call.args[0] if call.args else receiver(call)
        if isinstance(inner, ast.BinOp) and _is_small(inner.right):
            yield source.replaced((inner, source.operand(inner.left)))
    for call in methods(source, "abs"):
        if on_a_tensor(call):
            yield source.replaced((call, f"{source.segment(receiver(call))}.pow(2).sqrt()"))


@operator("numbers", "probability-not-clamped")
def sigmoid_by_hand(source: Source) -> Iterator[Mutation]:
    """The logarithm of a probability that can round to zero or one."""
    for call in losses(source):
        if last_name(call.func) == "binary_cross_entropy_with_logits" and not call.keywords:
            first, second = (source.operand(one) for one in call.args[:2])
            chance = f"{first}.sigmoid()"
            text = f"-({second} * {chance}.log() + (1 - {second}) * (1 - {chance}).log()).mean()"
            yield source.replaced((call, f"({text})"))
    for call in calls(source, "logsigmoid"):
        if call.args:
            yield source.replaced((call, f"{source.operand(call.args[0])}.sigmoid().log()"))


@operator("numbers", "exponent-not-halved")
def not_halved(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Mult) and number(node.left) == 0.5:
            if re.search("log_?var|log_?std|logv", source.segment(node.right)):
                yield source.replaced((node, f"8 * {source.operand(node.right)}"))
