"""The source of a script, the places in it that belong to the training, and edits in place.

Code that measures the held-out metric is never mutated, since a mutant would change the measure
and not the training. It is told by four simple rules:

- functions named after evaluation (`evaluate`, `test_epoch`, `accuracy`), and whatever is assigned
  to names of held-out data (`test_loader`, `val_x`);
- statements after `model.eval()` where no backward pass follows in the same block;
- calls of `print`;
- statements whose first line matches a pattern that `scripts.yaml` gives for the script.

Code under `no_grad` is left out as well. The few operators on targets, averages and episodes may
change it (`quiet=True`): these are computed under `no_grad` in sound trainings, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

EVALUATION = re.compile(
    r"(^|_)(eval\w*|tests?|testing|valid\w*|infer\w*|generate\w*|accuracy|metrics?|scores?|"
    r"report\w*|plot\w*|predict\w*|download\w*)(_|$)"
)
_HELD_OUT = re.compile(r"(^|_)(test|val|valid|validation|eval|evaluation|held|heldout|dev)(_|\d|$)")
_QUIET = ("no_grad", "inference_mode")
Kind = TypeVar("Kind", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A source with one mistake."""

    text: str
    line: int
    """The first line that was edited, from 1."""
    right: frozenset[int]
    """Lines that a finding may name."""


class Source:
    """A script's text with its syntax tree."""

    def __init__(self, text: str, spared: Sequence[str] = ()) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._raw = text.encode()
        self._starts = [0]
        for line in self._raw.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.parents: dict[ast.AST, ast.AST] = {}
        for parent in ast.walk(self.tree):
            for child in ast.iter_child_nodes(parent):
                self.parents[child] = parent
        self._spared = [re.compile(pattern) for pattern in spared]
        self._evaluation: set[int] = set()
        self._without_gradients: set[int] = set()
        self._mark()

    def nodes(self, kind: type[Kind], *, quiet: bool = False) -> Iterator[Kind]:
        """Nodes of the training in the order of the text; with `quiet` also those under
        `no_grad`."""
        found = []
        for node in ast.walk(self.tree):
            if not isinstance(node, kind) or not hasattr(node, "lineno"):
                continue
            if node.lineno in self._evaluation:
                continue
            if quiet or node.lineno not in self._without_gradients:
                found.append(node)
        yield from sorted(found, key=self.span)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where the node's bytes begin and end."""
        at = vars(node)
        start = self._starts[at["lineno"] - 1] + at["col_offset"]
        return start, self._starts[at["end_lineno"] - 1] + at["end_col_offset"]

    def segment(self, node: ast.AST) -> str:
        """The node's text."""
        start, end = self.span(node)
        return self._raw[start:end].decode()

    def operand(self, node: ast.AST) -> str:
        """The node's text, in parentheses where an attribute or an operator would bind tighter."""
        simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
        return self.segment(node) if isinstance(node, simple) else f"({self.segment(node)})"

    def replaced(self, *edits: tuple[ast.AST, str], also: Sequence[int] = ()) -> Mutation:
        """The nodes replaced by the texts. Line numbers stay: where a text has fewer lines than
        its node, blank lines are added, inside parentheses for an expression."""
        raw, right = self._raw, set(also)
        for node, text in sorted(edits, key=lambda edit: self.span(edit[0]), reverse=True):
            start, end = self.span(node)
            missing = raw[start:end].count(b"\n") - text.count("\n")
            if missing and isinstance(node, ast.stmt):
                text += "\n" * missing
            elif missing:
                text = f"({text}" + "\n" * missing + ")"
            raw = raw[:start] + text.encode() + raw[end:]
            at = vars(node)
            right |= set(range(at["lineno"], at["end_lineno"] + 1))
        line = min(vars(node)["lineno"] for node, _ in edits)
        return Mutation(raw.decode(), line, frozenset(right))

    def removed(self, statement: ast.stmt, also: Sequence[int] = ()) -> Mutation:
        """`pass` instead of the statement. The lines next to it are right as well."""
        return self.replaced((statement, "pass"), also=[*also, *self.neighbours(statement)])

    def neighbours(self, statement: ast.stmt) -> list[int]:
        """Lines of the statements before and after, or of the one that holds them."""
        block = self.block(statement)
        at = block.index(statement)
        beside = [*block[max(at - 1, 0) : at], *block[at + 1 : at + 2]]
        return [line for one in beside for line in (one.lineno, one.end_lineno or one.lineno)]

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which this one stands."""
        for value in vars(self.parents[statement]).values():
            if isinstance(value, list) and statement in value:
                return value
        raise LookupError(f"no block of line {statement.lineno}")

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that the node is part of."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def around(self, node: ast.AST, *kinds: type[ast.AST]) -> ast.AST | None:
        """The innermost node of these kinds around this one."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, kinds):
            found = self.parents.get(found)
        return found

    def within(self, node: ast.AST, function: str) -> bool:
        """The node is in a function whose name matches the pattern."""
        around = self.around(node, ast.FunctionDef)
        return isinstance(around, ast.FunctionDef) and bool(re.search(function, around.name))

    def _mark(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef):
                if EVALUATION.search(node.name.lower()):
                    self._leave_out(node)
                elif any(_is_quiet(one) for one in node.decorator_list):
                    self._leave_out(node, self._without_gradients)
            elif isinstance(node, ast.With) and any(_is_quiet(i.context_expr) for i in node.items):
                for statement in node.body:
                    self._leave_out(statement, self._without_gradients)
            elif isinstance(node, ast.Assign):
                if any(_HELD_OUT.search(name) for name in _assigned(node)):
                    self._leave_out(node)
            elif isinstance(node, ast.Call) and last_name(node.func) == "print":
                self._leave_out(node)
            if isinstance(node, ast.stmt):
                self._leave_out_by_text(node)
                self._leave_out_behind(node)

    def _leave_out(self, node: ast.AST, into: set[int] | None = None) -> None:
        at = vars(node)
        lines = range(at["lineno"], at["end_lineno"] + 1)
        (self._evaluation if into is None else into).update(lines)

    def _leave_out_by_text(self, node: ast.stmt) -> None:
        first = self.text.splitlines()[node.lineno - 1]
        if any(pattern.search(first) for pattern in self._spared):
            self._leave_out(node)

    def _leave_out_behind(self, node: ast.stmt) -> None:
        """What follows `model.eval()`, up to `model.train()`."""
        if not (isinstance(node, ast.Expr) and _calls_method(node.value, "eval")):
            return
        block = self.block(node)
        after = block[block.index(node) + 1 :]
        if any(_calls_method(part, "backward") for one in after for part in ast.walk(one)):
            return
        for statement in after:
            if isinstance(statement, ast.Expr) and _calls_method(statement.value, "train"):
                return
            self._leave_out(statement)


def last_name(node: ast.AST) -> str:
    """`relu` of `F.relu` and of `relu`; empty where the node is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_quiet(node: ast.AST) -> bool:
    return last_name(node.func if isinstance(node, ast.Call) else node) in _QUIET


def _calls_method(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    )


def _assigned(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        for part in ast.walk(target):
            if isinstance(part, ast.Name | ast.Attribute):
                yield last_name(part)
