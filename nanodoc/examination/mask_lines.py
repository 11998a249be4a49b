"""The line of the user's that makes a mask of attention."""

from __future__ import annotations

import ast
import contextlib
import inspect

import torch

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls, is_attention
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import function_around, nodes_of
from nanodoc.vocabulary.calls import ATTENTION, MASK_MAKERS, SCORE_MASKING

_BUFFER = "buffer:"


def mask_made_at(model: torch.nn.Module, calls: StepCalls) -> SourceSpan | None:
    """Of the first attention of the loss that has a mask: where the step makes it, or where a
    module keeps it; None where it comes from elsewhere, and of bools that a function of attention
    is given: what True means is for its call to know."""
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index in reaching and is_attention(call):
            for argument in _masks(calls, call):
                with contextlib.suppress(Exception):  # classes of any kind
                    found = _made_at(model, calls, argument)
                    if found is not None:
                        return found
            return None
    return None


def _masks(calls: StepCalls, attention: CallFacts) -> list[ArgumentFacts]:
    """What the attention is given as a mask, or what its scores are masked with."""
    if attention.name in ATTENTION:
        given = [a for a in attention.arguments[3:] if a.dtype != "bool"]
    else:
        given, argument = [], attention.arguments[0]
        for _ in range(4):
            made = calls.maker(argument)
            if made is None or not made.arguments:
                break
            if made.name in SCORE_MASKING:
                given += made.arguments
            argument = next((a for a in made.arguments if a.requires_grad), made.arguments[0])
    return [a for a in given if not a.requires_grad and len(a.shape) > 1]


def _made_at(
    model: torch.nn.Module, calls: StepCalls, argument: ArgumentFacts
) -> SourceSpan | None:
    if argument.shape[-1] != argument.shape[-2]:
        return None
    behind, leaves = calls.behind(argument)
    made = [calls.calls[index] for index in sorted(behind)]
    shaped = [call for call in made if call.name in ("tril", "triu")]
    own = [call for call in shaped or made if call.name in MASK_MAKERS and not call.called_from]
    kept = [leaf for a in leaves if (leaf := a.leaf) is not None and leaf.startswith(_BUFFER)]
    if kept and not shaped:
        return _kept_at(model, kept[0].removeprefix(_BUFFER))
    return own[-1].location if own else None


def _kept_at(model: torch.nn.Module, name: str) -> SourceSpan | None:
    """The only statement of the module's class that gives the buffer to it."""
    path, _, attribute = name.rpartition(".")
    kind = type(model.get_submodule(path))
    file = inspect.getsourcefile(kind)
    if file is None or frame_kind(file) != USER:
        return None
    nodes = nodes_of(file)
    classes = [n for n in nodes if isinstance(n, ast.ClassDef) and n.name == kind.__name__]
    found = [n for kept in classes for n in ast.walk(kept) if _keeps(n, attribute)]
    if len(found) != 1:
        return None
    line = found[0].lineno  # type: ignore[attr-defined]  # calls and statements have one
    return line_span(file, line, function_around(nodes, line))


def _keeps(node: ast.AST, attribute: str) -> bool:
    if isinstance(node, ast.Call):
        first = node.args[0] if node.args else None
        named = isinstance(first, ast.Constant) and first.value == attribute
        return named and getattr(node.func, "attr", "") == "register_buffer"
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute) and target.attr == attribute for target in node.targets
    )
