"""What a script's run is asked for, and whether a file is a script or a recipe. Nothing here
imports torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanodoc.recipe.target import is_main_guard, names_a_function, tree_of


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
    """A target that is to be run as it is: it names no function, and its file has no function
    `build`, or one that it trains with by itself when it is imported."""
    if names_a_function(target):
        return False
    tree = tree_of(Path(target))
    if tree is None:  # what is wrong with it is said when it is checked
        return True
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
    if is_main_guard(node):
        return
    if isinstance(node, ast.Call):
        yield node
    for inner in ast.iter_child_nodes(node):
        yield from _calls_of(inner)
