"""Proposed rewrites of the user's own expression, built from its syntax tree so that they always
parse."""

from __future__ import annotations

import ast

from nanodoc.diagnosis.finding import Applicability, Fix
from nanodoc.diagnosis.remedy import ReplaceArgument
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.vocabulary.calls import CLASSIFICATION
from nanodoc.vocabulary.names import canonical
from nanodoc.vocabulary.ops import FUNCTIONS_OF

_NAMESPACES = ("torch", "F", "functional", "th", "nn")


def guard(
    title: str,
    op: OpFacts,
    template: str,
    *,
    position: int = 0,
    confidence: Applicability = "likely",
) -> Fix:
    """The fix that puts `template` in the place of an argument of `op` (its divisor with position
    1), as text where the user's expression is understood, and to be tried in any case."""
    held = _held_by(op, template)
    remedy = ReplaceArgument(location=op.location, op=op.short, position=position, template=held)
    return Fix(
        title=title,
        patch=on_argument(op, held, position=position),
        confidence=confidence,
        remedy=remedy if op.location is not None else None,
    )


def on_argument(op: OpFacts, template: str, *, position: int = 0) -> str | None:
    """The underlined call with an argument `x` replaced by `template` (say `"{x} + 1e-12"`); None
    if it is no such call.

    Understands `torch.sqrt(x)`, `F.relu(x)`, `x.sqrt()`, `x ** 0.5`, `a / b` and `loss(x, y)`.
    """
    tree = _expression(op)
    if isinstance(tree, ast.BinOp):
        wanted = {
            "pow": ast.Pow,
            "div": ast.Div,
            "reciprocal": ast.Div,
            "mul": ast.Mult,
            "add": ast.Add,
            "sub": ast.Sub,
        }
        if not isinstance(tree.op, wanted.get(op.short, ast.MatMult)):
            return None
        side = "right" if position == 1 or op.short == "reciprocal" else "left"
        filled = _filled(template, getattr(tree, side))
        if filled is None:
            return None
        setattr(tree, side, filled)
        return ast.unparse(tree)
    if not isinstance(tree, ast.Call) or not _names(tree, op):
        return None
    owner = tree.func.value if isinstance(tree.func, ast.Attribute) else None
    as_method = (
        owner is not None
        and not (isinstance(owner, ast.Name) and owner.id in _NAMESPACES)
        and ast.unparse(owner) != "torch.linalg"
    )
    if as_method and position == 0:
        filled = _filled(template, owner) if owner is not None else None
        if filled is None or not isinstance(tree.func, ast.Attribute):
            return None
        tree.func.value = filled
        return ast.unparse(tree)
    at = position - 1 if as_method else position
    if at >= len(tree.args) or isinstance(tree.args[at], ast.Starred):
        return None
    filled = _filled(template, tree.args[at])
    if filled is None:
        return None
    tree.args[at] = filled
    return ast.unparse(tree)


def with_keyword(op: OpFacts, name: str, value: bool, *, drop: tuple[str, ...] = ()) -> str | None:
    """The underlined call of `op` with `name=value`, and without the keywords `drop`."""
    tree = _expression(op)
    if not isinstance(tree, ast.Call) or not _names(tree, op):
        return None
    tree.keywords = [word for word in tree.keywords if word.arg not in (name, *drop)]
    tree.keywords.append(ast.keyword(arg=name, value=ast.Constant(value)))
    return ast.unparse(tree)


def unbiased_where_many(op: OpFacts) -> str | None:
    """`x.std()` as `x.std(unbiased=x.numel() > 1)`; None with dimensions or keywords of its own."""
    tree = _expression(op)
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Attribute)
        or not _names(tree, op)
        or tree.keywords
    ):
        return None
    as_function = isinstance(tree.func.value, ast.Name) and tree.func.value.id in _NAMESPACES
    x = (
        tree.args[0]
        if as_function and len(tree.args) == 1
        else tree.func.value
        if not as_function and not tree.args
        else None
    )
    if not isinstance(x, (ast.Name, ast.Attribute)):
        return None
    tree.keywords.append(
        ast.keyword(
            arg="unbiased", value=ast.parse(f"{ast.unparse(x)}.numel() > 1", mode="eval").body
        )
    )
    return ast.unparse(tree)


def on_keyword(op: OpFacts, names: tuple[str, ...], template: str) -> str | None:
    """The underlined call, whatever it calls, with the one keyword of `names` that it gives
    replaced by `template`."""
    tree = _expression(op)
    if not isinstance(tree, ast.Call):
        return None
    found = [
        word
        for word in tree.keywords
        if word.arg in names
        and not (isinstance(word.value, ast.Constant) and word.value.value is None)
    ]
    filled = _filled(template, found[0].value) if len(found) == 1 else None
    if filled is None:
        return None
    found[0].value = filled
    return ast.unparse(tree)


def number_in_call(span: SourceSpan, name: str, value: str) -> str | None:
    """The expression of `span` with the number after `name=` replaced by `value`, everything else
    letter for letter; None where it is no number written there."""
    number = _number_in_call(span, name)
    if number is None:
        return None
    line = (span.expression or "").encode()
    return (line[: number.col_offset] + value.encode() + line[number.end_col_offset :]).decode()


def written_number(span: SourceSpan, name: str) -> float | None:
    """The number after `name=` in the call of `span`; None where none is written there."""
    number = _number_in_call(span, name)
    value = number.value if number is not None else None
    return float(value) if isinstance(value, (int, float)) else None


def _number_in_call(span: SourceSpan, name: str) -> ast.Constant | None:
    try:
        tree = ast.parse(span.expression or "", mode="eval").body
    except SyntaxError:
        return None
    for word in tree.keywords if isinstance(tree, ast.Call) else ():
        constant = word.value
        if (
            word.arg == name
            and isinstance(constant, ast.Constant)
            and isinstance(constant.value, (int, float))
            and constant.end_col_offset
        ):
            return constant
    return None


def sum_over_count(op: OpFacts) -> str | None:
    """`x[mask].mean()` as `x[mask].sum() / mask.sum().clamp(min=1)`; None for anything else."""
    tree = _expression(op)
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Attribute)
        or tree.func.attr != "mean"
        or tree.args
        or tree.keywords
    ):
        return None
    selected = tree.func.value
    if not isinstance(selected, ast.Subscript) or not isinstance(
        selected.slice, (ast.Name, ast.Attribute)
    ):
        return None
    return f"{ast.unparse(selected)}.sum() / {ast.unparse(selected.slice)}.sum().clamp(min=1)"


def sum_over_kept(op: OpFacts, ignore_index: int) -> str | None:
    """`F.cross_entropy(logits, y)` as its sum over the number of targets that are not ignored; None
    for anything else."""
    tree = _expression(op)
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Attribute)
        or tree.func.attr not in CLASSIFICATION
    ):
        return None
    words = {word.arg for word in tree.keywords}
    if (
        len(tree.args) != 2
        or not isinstance(tree.args[1], (ast.Name, ast.Attribute))
        or words - {"ignore_index"}
    ):
        return None  # class weights and label smoothing count otherwise
    tree.keywords.append(ast.keyword(arg="reduction", value=ast.Constant("sum")))
    return (
        f"{ast.unparse(tree)} / ({ast.unparse(tree.args[1])} != {ignore_index}).sum().clamp(min=1)"
    )


def unwrapped(op: OpFacts) -> str | None:
    """`F.softmax(x, dim=1)` and `x.softmax(1)` as `x`; None for anything else."""
    tree = _expression(op)
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Attribute)
        or tree.func.attr != op.short
    ):
        return None
    as_function = isinstance(tree.func.value, ast.Name) and tree.func.value.id in _NAMESPACES
    inner = (
        tree.args[0] if as_function and tree.args else tree.func.value if not as_function else None
    )
    return ast.unparse(inner) if inner is not None else None


def log_softmax(op: OpFacts) -> str | None:
    """`torch.log(F.softmax(x, d))` and its spellings as `F.log_softmax(x, d)`; None where the
    softmax is elsewhere."""
    tree = _expression(op)
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Attribute)
        or tree.func.attr != "log"
    ):
        return None
    inner = tree.args[0] if tree.args else tree.func.value
    if (
        not isinstance(inner, ast.Call)
        or not isinstance(inner.func, ast.Attribute)
        or inner.func.attr != "softmax"
    ):
        return None
    inner.func.attr = "log_softmax"
    return ast.unparse(inner)


def _expression(op: OpFacts) -> ast.expr | None:
    text = op.location.expression if op.location else None
    if not text or op.called_from is not None:  # a library's line is not the user's to change
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


def _names(tree: ast.Call, op: OpFacts) -> bool:
    """The call names the op: `torch.sqrt`, `x.sqrt`, `F.huber_loss`."""
    called = (
        tree.func.attr
        if isinstance(tree.func, ast.Attribute)
        else tree.func.id
        if isinstance(tree.func, ast.Name)
        else ""
    )
    return bool(called) and (
        called in op.short
        or op.short in called
        or canonical(called) == op.short
        or called in FUNCTIONS_OF.get(op.short, ())
    )


def _filled(template: str, x: ast.expr) -> ast.expr | None:
    simple = isinstance(x, (ast.Name, ast.Call, ast.Attribute, ast.Subscript))
    if template.count("{x}") > 1 and (not simple or isinstance(x, ast.Call)):
        return None  # it would be computed twice
    text = ast.unparse(x)
    return ast.parse(template.replace("{x}", text if simple else f"({text})"), mode="eval").body
