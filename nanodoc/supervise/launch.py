"""What a script's run is asked for, and what can be told of a file without running it. Nothing here
imports torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HARMLESS = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What to run: a file or, with `module`, a module by name, and the arguments that are its
    own."""

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    def __str__(self) -> str:
        name = f"-m {self.target}" if self.module else self.target
        return " ".join((name, *(("--", *self.arguments) if self.arguments else ())))


def is_script(target: str) -> bool:
    """A file that is to be run as it is: it is there, and has no function `build`, or one that it
    trains with by itself when it is imported."""
    tree = _tree(target)
    if tree is None:
        return False
    builds = any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == "build"
        for node in tree.body
    )
    return not builds or _uses_and_trains(tree)


def _uses_and_trains(tree: ast.Module) -> bool:
    """What the file does when it is imported, its own functions that it calls among it, calls
    `build()` and differentiates something."""
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    called: set[str] = set()
    waiting: list[ast.AST] = list(tree.body)
    trains = False
    while waiting:
        for call in _calls_of(waiting.pop()):
            name = getattr(call.func, "id", "")
            trains = trains or getattr(call.func, "attr", "") == "backward"
            if name in functions and name not in called:
                called.add(name)
                waiting += functions[name].body
    return trains and "build" in called


def _calls_of(node: ast.AST) -> Iterator[ast.Call]:
    """Those that a statement makes when it is run; what it defines is not run yet."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return
    if isinstance(node, ast.Call):
        yield node
    for inner in ast.iter_child_nodes(node):
        yield from _calls_of(inner)


def trains_nothing(target: str) -> str | None:
    """What a file defines that does nothing when it is run, as a sentence; None of one that does
    something, or that cannot be read."""
    tree = _tree(target)
    if tree is None or not all(_is_harmless(node) for node in tree.body):
        return None
    functions = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
    classes = [n.name for n in tree.body if isinstance(n, ast.ClassDef)]
    found = [
        f"{kind} {', '.join(names[:6])}"
        for kind, names in (("functions", functions), ("classes", classes))
        if names
    ]
    return f"it only defines {' and '.join(found) or 'names'}"


def _is_harmless(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, _HARMLESS)


def _tree(target: str) -> ast.Module | None:
    path = Path(target)
    if not path.is_file():
        return None
    try:
        return ast.parse(path.read_bytes(), target)
    except (SyntaxError, ValueError, OSError, RecursionError):
        return None
