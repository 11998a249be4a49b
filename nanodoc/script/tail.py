"""What a loop's body does behind its last optimizer step, as far as it can be run again without
anybody noticing: it moves tensors, as those of a target network, and does nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import takewhile
from types import FrameType

import torch

from nanodoc.script.loops import Loop
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.parsed import definition_of

_STATEMENTS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.Pass, ast.Return),
    *(ast.For, ast.If, ast.With, ast.Try),  # a marked loop stands in a `try`
)
_REACHING = frozenset(
    (
        *("parameters", "named_parameters", "buffers", "named_buffers", "items", "zip", "len"),
        *("state_dict", "load_state_dict", "no_grad", "enumerate", "detach", "clone"),
    )
)
"""What such lines reach the tensors with."""
_OF_MARKS = "__nanodoc_"
_OPAQUE = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda)


def statements_that_move(loop: Loop, frame: FrameType | None) -> int:
    """`frame` has called what made the last optimizer step. How many of the first statements of the
    loop's body, run again, move all that moves behind that step; 0 where nothing does, or where a
    function that is called would do something else, too, such as step an environment."""
    moves = False
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno
        if code.co_filename == loop.file and loop.first <= line <= loop.last:
            held = [n for n, statement in enumerate(loop.body) if _holds(statement, line)]
            if not held:
                return 0
            at = held[-1]  # the last of several on one line
            inside = list(_behind([loop.body[at]], line))
            if not all(map(_is_plain, inside)):
                return 0
            behind = list(takewhile(_is_plain, loop.body[at + 1 :]))
            return at + 1 + len(behind) if moves or inside or behind else 0
        if frame_kind(code.co_filename) == USER:
            function = definition_of(code)
            if function is None:
                return 0
            behind = list(_behind(function.body, line))
            if not all(map(_is_plain, behind)):
                return 0
            moves = moves or bool(behind)
        frame = frame.f_back
    return 0


def _holds(statement: ast.stmt, line: int) -> bool:
    """A `try` of a mark has the place of its first statement alone."""
    lines = [n.end_lineno or n.lineno for n in ast.walk(statement) if isinstance(n, ast.stmt)]
    return statement.lineno <= line <= max(lines)


def _behind(body: Sequence[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """The statements that are run after the one that holds the line. A loop that holds it is one of
    them: it may go around again."""
    for statement in body:
        if statement.lineno > line:
            yield statement
        elif _holds(statement, line) and isinstance(statement, ast.With | ast.If | ast.Try):
            for part in ("body", "orelse", "finalbody"):
                yield from _behind(getattr(statement, part, []), line)
        elif _holds(statement, line) and hasattr(statement, "body"):
            yield statement


def _is_plain(statement: ast.stmt) -> bool:
    """It calls nothing but methods that read parameters or move tensors."""
    for node in ast.walk(statement):
        if isinstance(node, _OPAQUE):
            return False
        if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
            return False
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            moves = name.endswith("_") and hasattr(torch.Tensor, name)  # in place
            if not moves and name not in _REACHING and not name.startswith(_OF_MARKS):
                return False
    return True
