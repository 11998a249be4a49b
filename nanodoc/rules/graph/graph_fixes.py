"""What mends a cut, and what a replay with it showed."""

from __future__ import annotations

import ast
from typing import Any

from nanodoc.diagnosis.finding import Applicability, Fix
from nanodoc.facts.graph import CutFacts, GraphFacts, fix_key
from nanodoc.facts.source import SourceSpan

_ADVICE = {
    "item": "keep the value as a tensor",
    "numpy": "do this in torch",
    "integer": "keep it in floating point",
    "comparison": "compute the loss on the compared values, or on a smooth substitute such as "
    "torch.sigmoid",
    "flat": "round without stopping the gradient: x + (torch.round(x) - x).detach()",
    "in-place": "collect the parts and join them with torch.stack or torch.cat",
    "custom-function": "return the gradient of this input from backward()",
    "rewrapped": "return the loss itself; do not wrap it in a new tensor that requires gradient",
}
_INDICES = (
    "compute the loss on the scores themselves (cross entropy), or on a softmax-weighted mean "
    "instead"
)


def fixes_for(
    graph: GraphFacts, cut: CutFacts
) -> tuple[tuple[Fix, ...], tuple[dict[str, Any], ...]]:
    """The fixes of one cut, with the outcome of each that was tried, and the rows of the
    experiments."""
    key = fix_key(cut.op.location, cut.region)
    verified = [kind for where, kind in graph.verified if where == key]
    refuted = [kind for where, kind in graph.refuted if where == key]
    rows = [
        {"name": _NAMES[kind], "outcome": "every parameter gets its gradient", "loss": None}
        for kind in verified
    ]
    for kind in refuted:
        raised = next((e for where, tried, e in graph.raised if (where, tried) == (key, kind)), "")
        outcome = f"the step raises {raised}" if raised else "the parameters still get no gradient"
        rows.append({"name": _NAMES[kind], "outcome": outcome, "loss": None})
    worked = verified[0] if verified else None
    if refuted and worked is None and cut.kind in ("detach", "data"):
        # what was tried is no help; a loss that comes first may need it cut
        title = (
            "keep the graph for this loss; detach only what you pass to a different loss or step"
        )
        return (Fix(title=title, confidence="likely"),), tuple(rows)
    return (_fix(cut, worked),), tuple(rows)


_NAMES = {
    "attached": "without detaching",
    "stack": "torch.stack",
    "cat": "torch.cat",
    "grad-on": "with gradients on",
    "unfrozen": "without freezing",
    "out-of-place": "out of place",
    "detach": "detached",
}


def _fix(cut: CutFacts, worked: str | None) -> Fix:
    verified = True if worked else None
    sure: Applicability = "machine" if worked else "likely"
    if cut.kind in ("detach", "data"):
        return Fix(
            title="keep the graph",
            patch=_without_detach(cut.op.location),
            verified=verified,
            confidence=sure,
        )
    if cut.kind == "rebuilt":
        joined = f"torch.{worked or 'stack'}"
        return Fix(
            title="join the tensors themselves",
            patch=_joined(cut.op.location, joined),
            verified=verified,
            confidence=sure,
        )
    if cut.kind == "region":
        if cut.region_kind == "checkpoint":
            return Fix(title="checkpoint with use_reentrant=False", confidence="likely")
        return Fix(title="take these layers out of the region", verified=verified, confidence=sure)
    if cut.kind == "frozen-midway":
        return Fix(title="do not freeze it inside the step", verified=verified, confidence=sure)
    return Fix(title=_ADVICE.get(cut.kind, _INDICES), confidence="likely")


def _without_detach(span: SourceSpan | None) -> str | None:
    tree = _parsed(span)
    if isinstance(tree, ast.Attribute) and tree.attr == "data":
        return ast.unparse(tree.value)
    if (
        isinstance(tree, ast.Call)
        and isinstance(tree.func, ast.Attribute)
        and tree.func.attr == "detach"
    ):
        return ast.unparse(tree.args[0] if tree.args else tree.func.value)
    return None


def _joined(span: SourceSpan | None, function: str) -> str | None:
    tree = _parsed(span)
    if isinstance(tree, ast.Call) and tree.args:
        dtype = next((k for k in tree.keywords if k.arg == "dtype"), None)
        text = f"{function}({ast.unparse(tree.args[0])})"
        return f"{text}.to({ast.unparse(dtype.value)})" if dtype is not None else text
    return None


def _parsed(span: SourceSpan | None) -> ast.expr | None:
    if span is None or not span.expression:
        return None
    try:
        return ast.parse(span.expression, mode="eval").body
    except SyntaxError:
        return None
