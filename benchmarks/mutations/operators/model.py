"""Mistakes in the network: initial weights, layers, modes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from benchmarks.mutations.operators.base import (
    bare_calls,
    calls,
    keyword,
    number,
    operator,
)
from benchmarks.mutations.source import Mutation, Source, last_name

_LAYERS = r"Linear|Conv1d|Conv2d|Embedding|ConvTranspose2d"
_NORMS = r"LayerNorm|BatchNorm1d|BatchNorm2d|GroupNorm|RMSNorm|InstanceNorm2d"


def _behind_layers(source: Source, statement: str) -> Iterator[Mutation]:
    """`self.layer = nn.Linear(…)` with a statement behind it on the same line."""
    for node in source.nodes(ast.Assign):
        value, target = node.value, node.targets[0]
        if isinstance(value, ast.Call) and isinstance(target, ast.Attribute):
            if last_name(target.value) == "self" and last_name(value.func) in _LAYERS.split("|"):
                added = statement.format(source.segment(target))
                yield source.replaced((node, f"{source.segment(node)}; {added}"))


@operator("model", "first-weights-times-30")
def wide_weights(source: Source) -> Iterator[Mutation]:
    yield from _behind_layers(source, "{}.weight.data.mul_(30.0)")


@operator("model", "first-weights-zero")
def zero_weights(source: Source) -> Iterator[Mutation]:
    yield from _behind_layers(source, "{}.weight.data.zero_()")


@operator("model", "norm-dropped")
def norm_dropped(source: Source) -> Iterator[Mutation]:
    for call in calls(source, _NORMS):
        yield source.replaced((call, "nn.Identity()"))


@operator("model", "activation-dropped")
def activation_dropped(source: Source) -> Iterator[Mutation]:
    for call in calls(source, r"ReLU|GELU|Tanh|SiLU|LeakyReLU"):
        yield source.replaced((call, "nn.Identity()"))
    for call in calls(source, r"relu|gelu|silu|elu|tanh"):
        if call.args and isinstance(call.func, ast.Attribute):
            if last_name(call.func.value) in ("F", "torch"):
                yield source.replaced((call, source.operand(call.args[0])))


@operator("model", "trained-in-eval-mode")
def eval_mode(source: Source) -> Iterator[Mutation]:
    for statement in bare_calls(source, "train"):
        call = statement.value
        assert isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute) and not call.args:
            yield source.replaced((statement, f"{source.segment(call.func.value)}.eval()"))


@operator("model", "dropout-of-0.9")
def much_dropout(source: Source) -> Iterator[Mutation]:
    for call in calls(source, r"Dropout\w*"):
        given = call.args[0] if call.args else keyword(call, "p")
        if given is not None:
            yield source.replaced((given, "0.9"))
    for call in calls(source, r"dropout|Transformer\w+|LSTM|GRU|MultiheadAttention"):
        given = keyword(call, "p", "dropout")
        if given is not None:
            yield source.replaced((given, "0.9"))


@operator("model", "one-module-repeated")
def repeated(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.ListComp):
        element, loop = node.elt, node.generators[0]
        if not isinstance(element, ast.Call) or not last_name(element.func)[:1].isupper():
            continue
        count = loop.iter
        if (
            isinstance(count, ast.Call)
            and last_name(count.func) == "range"
            and len(count.args) == 1
        ):
            times = source.operand(count.args[0])
            yield source.replaced((node, f"[{source.segment(element)}] * {times}"))


@operator("model", "positions-of-another-axis")
def positions(source: Source) -> Iterator[Mutation]:
    for call in calls(source, "arange"):
        for inner in ast.walk(call):
            if isinstance(inner, ast.Subscript) and last_name(inner.value) == "shape":
                if number(inner.slice) in (1, -1, 2):
                    yield source.replaced((inner.slice, "0"))
            elif isinstance(inner, ast.Call) and last_name(inner.func) == "size" and inner.args:
                if number(inner.args[0]) in (1, -1, 2):
                    yield source.replaced((inner.args[0], "0"))


@operator("model", "positions-dropped")
def positions_dropped(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.BinOp):
        if isinstance(node.op, ast.Add) and source.within(node, "forward|encode|embed"):
            if "pos" in source.segment(node.right).lower():
                yield source.replaced((node, source.segment(node.left)))


@operator("model", "residual-dropped")
def residual_dropped(source: Source) -> Iterator[Mutation]:
    for node in source.nodes(ast.BinOp):
        if not isinstance(node.op, ast.Add) or not source.within(node, "forward"):
            continue
        if isinstance(node.left, ast.Name) and isinstance(node.right, ast.Call):
            yield source.replaced((node, source.segment(node.right)))


@operator("model", "layer-frozen")
def frozen(source: Source) -> Iterator[Mutation]:
    yield from _behind_layers(source, "{}.requires_grad_(False)")


@operator("model", "layer-used-twice")
def used_twice(source: Source) -> Iterator[Mutation]:
    """The forward pass calls a neighbouring layer of the same kind and size by mistake."""
    for node in source.nodes(ast.Attribute):
        if last_name(node.value) != "self" or not source.within(node, "forward"):
            continue
        name = node.attr
        if name[-1:].isdigit() and int(name[-1]) > 1:
            other = f"{name[:-1]}{int(name[-1]) - 1}"
            if f"self.{other}(" in source.text or f"self.{other} =" in source.text:
                yield source.replaced((node, f"self.{other}"))
