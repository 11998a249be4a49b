"""Proposed rewrites of the user's own expression, built from its syntax tree so that they always parse."""

from __future__ import annotations

import ast

from nanodoc.evidence import OpFacts
from nanodoc.report.model import Fix, Remedy


def guard(title: str, op: OpFacts, template: str, *, position: int = 0, confidence: str = "likely") -> Fix:
    """The fix that puts `template` in the place of an argument of `op` (its divisor with position 1), as text where the user's expression
    is understood, and to be tried in any case."""
    patch = on_argument(op, (op.short,), template) if position == 0 else on_denominator(op, template)
    remedy = Remedy(kind="argument", location=op.location, op=op.short, position=position, template=_held_by(op, template))
    return Fix(title=title, patch=patch, confidence=confidence, remedy=remedy if op.location is not None else None)


def on_argument(op: OpFacts, names: tuple[str, ...], template: str) -> str | None:
    """The underlined call with its argument `x` replaced by `template` (say `"{x} + 1e-12"`); None if it is no such call.

    Understands `torch.sqrt(x)`, `F.relu(x)`, `x.sqrt()` and `x ** 0.5` (named "pow").
    """
    tree = _expression(op)
    if tree is None:
        return None
    template = _held_by(op, template)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow) and "pow" in names:
        tree.left = _filled(template, tree.left)
        return ast.unparse(tree)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr not in names:
        return None
    if isinstance(tree.func.value, ast.Name) and tree.func.value.id in ("torch", "F", "functional", "th", "nn"):
        if not tree.args:
            return None
        tree.args[0] = _filled(template, tree.args[0])
    else:
        tree.func.value = _filled(template, tree.func.value)
    return ast.unparse(tree)


def on_denominator(op: OpFacts, template: str) -> str | None:
    """The underlined division `a / b` with `b` replaced by `template`."""
    tree = _expression(op)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        tree.right = _filled(_held_by(op, template), tree.right)
        return ast.unparse(tree)
    return None


def log_softmax(op: OpFacts) -> str | None:
    """`torch.log(F.softmax(x, d))` and its spellings as `F.log_softmax(x, d)`; None where the softmax is elsewhere."""
    tree = _expression(op)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Attribute) or tree.func.attr != "log":
        return None
    inner = tree.args[0] if tree.args else tree.func.value
    if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute) or inner.func.attr != "softmax":
        return None
    inner.func.attr = "log_softmax"
    return ast.unparse(inner)


def _expression(op: OpFacts) -> ast.expr | None:
    text = op.location.expression if op.location else None
    if not text:
        return None
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _held_by(op: OpFacts, template: str) -> str:
    """The template with constants that the op's dtype can hold: 1e-12 is 0 in float16."""
    if any(fact.dtype == "float16" for fact in (*op.inputs, *op.outputs)):
        return template.replace("1e-12", "1e-4").replace("1e-6", "1e-3")
    return template


def _filled(template: str, x: ast.expr) -> ast.expr:
    text = ast.unparse(x)
    if not isinstance(x, (ast.Name, ast.Call, ast.Attribute, ast.Subscript)):
        text = f"({text})"
    return ast.parse(template.replace("{x}", text), mode="eval").body
