"""Mistakes in what gradients flow through."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    bare_calls,
    forward_calls,
    loss_sums,
    losses,
    methods,
    operator,
    receiver,
    steps,
)
from benchmarks.mutations.source import Mutation, Source, last_name


@operator("graph", "features-detached")
def detached(source: Source) -> Iterator[Mutation]:
    for _, call in forward_calls(source):
        yield source.replaced((call, f"{source.segment(call)}.detach()"))


@operator("graph", "prediction-detached")
def prediction_detached(source: Source) -> Iterator[Mutation]:
    for call in losses(source):
        yield source.replaced((call.args[0], f"{source.operand(call.args[0])}.detach()"))


@operator("graph", "layer-under-no-grad")
def under_no_grad(source: Source) -> Iterator[Mutation]:
    for statement, _ in forward_calls(source):
        if statement.lineno == statement.end_lineno:
            text = f"with torch.no_grad(): {source.segment(statement)}"
            yield source.replaced((statement, text))


@operator("graph", "data-of-a-tensor")
def data_of_a_tensor(source: Source) -> Iterator[Mutation]:
    for _, call in forward_calls(source):
        first = call.args[0]
        if isinstance(first, ast.Name) and first.id != _first_input(source, call):
            yield source.replaced((first, f"{first.id}.data"))


def _first_input(source: Source, node: ast.AST) -> str:
    """The network's input: to cut there cuts nothing, but where the name is bound again."""
    function = source.around(node, ast.FunctionDef)
    assert isinstance(function, ast.FunctionDef)
    arguments = [one.arg for one in function.args.args if one.arg != "self"]
    earlier = (
        [
            one
            for one in source.nodes(ast.Name)
            if one.id == arguments[0]
            and isinstance(one.ctx, ast.Store)
            and function.lineno < one.lineno < node.lineno  # type: ignore[attr-defined]
        ]
        if arguments
        else []
    )
    return arguments[0] if arguments and not earlier else ""


@operator("graph", "tensor-rebuilt-from-values")
def rebuilt(source: Source) -> Iterator[Mutation]:
    for _, call in forward_calls(source):
        text = f"torch.tensor({source.segment(call)}.tolist())"
        yield source.replaced((call, text))
    for call in losses(source):
        first = call.args[0]
        text = f"torch.tensor({source.operand(first)}.tolist(), requires_grad=True)"
        yield source.replaced((first, text))


@operator("graph", "detach-dropped")
def detach_dropped(source: Source) -> Iterator[Mutation]:
    for call in methods(source, "detach"):
        if not _only_read(source, call):
            yield source.replaced((call, source.segment(receiver(call))))


def _only_read(source: Source, call: ast.Call) -> bool:
    """Its number is printed or kept for a chart."""
    parent = source.parents[call]
    return isinstance(parent, ast.Attribute) and parent.attr in ("cpu", "numpy", "item", "clone")


@operator("graph", "term-detached")
def term_detached(source: Source) -> Iterator[Mutation]:
    for node in loss_sums(source):
        for term in (node.left, node.right):
            if not isinstance(term, ast.BinOp) or isinstance(term.op, ast.Mult):
                yield source.replaced((term, f"{source.operand(term)}.detach()"))


@operator("graph", "backward-twice")
def backward_twice(source: Source) -> Iterator[Mutation]:
    for statement in bare_calls(source, "backward"):
        text = source.segment(statement)
        yield source.replaced((statement, f"{text}; {text}"))


@operator("graph", "no-grad-dropped")
def no_grad_dropped(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.With):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and last_name(call.func) == "no_grad":
                yield source.replaced((call, "torch.enable_grad()"))


@operator("graph", "stepped-before-backward")
def before_backward(source: Source) -> Iterator[Mutation]:
    """The step is taken before the backward pass of the same iteration."""
    for step in steps(source):
        block = source.block(step)
        before = block[block.index(step) - 1]
        text = source.segment(before)
        if block.index(step) and isinstance(before, ast.Expr) and ".backward(" in text:
            if text.count("\n") == source.segment(step).count("\n") == 0:
                yield source.replaced((before, source.segment(step)), (step, text))
