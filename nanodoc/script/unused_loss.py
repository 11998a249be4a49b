"""A loss that is not finite, and that the script looks at before it would differentiate it: `if not
math.isfinite(loss): sys.exit(1)`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

import torch

from nanodoc.instrument.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    sequence_number,
)
from nanodoc.script.loops import Loop
from nanodoc.tensors.plain import local_of
from nanodoc.trace.frame_variables import variables_of_frame

_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_ENDING = ("exit", "_exit", "quit", "abort")


graph_position: Callable[[], int] = sequence_number
"""How many nodes of autograd this thread has made."""


def sick_loss_in(frame: FrameType, loop: Loop, since: int) -> torch.Tensor | None:
    """The scalar with a graph that was computed last of those that are not finite, that an
    iteration of the loop has made since autograd stood at `since`, and on which it depends whether
    the iteration is left: its name stands in such an `if`, or what stands there is made of it."""
    names = _names_looked_at(loop.body)
    if not names:
        return None
    module = frame.f_code.co_name == "<module>"
    values = frame.f_globals if module else variables_of_frame(frame)
    found = [values[name] for name in names if name in values and _is_sick(values[name], since)]
    return max(found, key=lambda loss: loss.grad_fn._sequence_nr(), default=None)


def _is_sick(value: object, since: int) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    with torch.no_grad(), DisableTorchFunction(), DisableTorchDispatch():
        if value.grad_fn is None or value.numel() != 1 or not value.is_floating_point():
            return False
        if value.grad_fn._sequence_nr() < since:
            return False
        return not bool(torch.isfinite(local_of(value)).all())


@lru_cache(maxsize=64)
def _names_looked_at(body: tuple[ast.stmt, ...]) -> frozenset[str]:
    """The names in the tests of the `if`s of a loop's body that leave it, and those that these are
    made of there."""
    nodes = [node for statement in body for node in ast.walk(statement)]
    tested = [node.test for node in nodes if isinstance(node, ast.If) and _leaves(node)]
    names = {name for test in tested for name in _names(test)}
    while more := {name for node in nodes for name in _made_of(node, names)} - names:
        names |= more
    return frozenset(names)


def _leaves(branch: ast.If) -> bool:
    """It leaves the iteration, or the program, in one of its branches."""
    inside = [node for part in (*branch.body, *branch.orelse) for node in ast.walk(part)]
    called = [node.func for node in inside if isinstance(node, ast.Call)]
    words = {getattr(f, "attr", getattr(f, "id", "")) for f in called}
    return bool(words & {*_ENDING}) or any(isinstance(node, _LEAVING) for node in inside)


def _made_of(node: ast.AST, names: set[str]) -> set[str]:
    """What is read to bind one of these names."""
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = [node.target]
    else:
        return set()
    bound = {name for target in targets for name in _names(target)}
    return _names(node.value) if bound & names and node.value is not None else set()


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
