"""Where the user's source gives a number to a name or to a reshape, or writes it into a tensor:
read from the source, and used for nothing but the line that is shown."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, absolute, frame_kind, line_span
from nanodoc.trace.parsed import definition_of, function_around, nodes_of
from nanodoc.trace.returned import code_of

_WARMUP = re.compile(r"(?i)-*(num[_-]|n_|lr_)?warm_?up([_-](steps|iters|iterations|ratio|epochs))?")


def warmup_at(files: Iterable[str], length: int) -> SourceSpan | None:
    """The only line of these files that says that a warm-up is so long, or a step less."""
    wanted = {length, length - 1}
    found = {
        (span.file, span.line): span
        for file in {absolute(file) for file in files}
        if frame_kind(file) == USER
        for span in _named(file, _WARMUP, wanted)
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _named(file: str, pattern: re.Pattern[str], wanted: Container[int]) -> Iterator[SourceSpan]:
    """Arguments of calls, assignments and defaults of options."""
    for node in nodes_of(file):
        if isinstance(node, ast.Call):
            option = getattr(node.func, "attr", "") == "add_argument"
            names = [a.value for a in node.args if isinstance(a, ast.Constant)] if option else []
            for given in node.keywords:
                named = given.arg or ""
                if option and named == "default":
                    named = next((str(name) for name in names), "")
                if pattern.fullmatch(named) and _is_one_of(given.value, wanted):
                    yield line_span(file, given.value.lineno, "<module>")
        elif isinstance(node, ast.AnnAssign) and _is_one_of(node.value, wanted):
            if isinstance(node.target, ast.Name) and pattern.fullmatch(node.target.id):
                yield line_span(file, node.lineno, "<module>")
        elif isinstance(node, ast.Assign) and _is_one_of(node.value, wanted):
            for target in node.targets:
                if isinstance(target, ast.Name) and pattern.fullmatch(target.id):
                    yield line_span(file, node.lineno, "<module>")


def _is_one_of(value: ast.expr | None, wanted: Container[int]) -> bool:
    constant = value.value if isinstance(value, ast.Constant) else None
    return type(constant) is int and constant in wanted


def reshaped_at(files: Iterable[str], rows: int) -> SourceSpan | None:
    """The only line of these files that reshapes something to so many rows."""
    found = [
        line_span(file, node.end_lineno or node.lineno, "<module>")
        for file in {absolute(file) for file in files}
        if frame_kind(file) == USER
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and is_reshape_to(node, rows)
    ]
    return found[0] if len(found) == 1 else None


def keys_written_at(file: str, key: str) -> list[SourceSpan]:
    """The lines that give something that key in a dictionary that is written out; of a list that
    is empty there, those that put something into it: `rows["score"].append(score)`."""
    nodes = nodes_of(file)
    pairs = [
        (named, value)
        for node in nodes
        if isinstance(node, ast.Dict)
        for named, value in zip(node.keys, node.values, strict=True)
        if isinstance(named, ast.Constant) and named.value == key
    ]
    empty = [isinstance(value, ast.List) and not value.elts for _, value in pairs]
    places: list[ast.expr] = [named for named, _ in pairs if named is not None]
    if pairs and all(empty):
        places = [node for node in nodes if _fills(node, key)] or places  # type: ignore[misc]  # calls
    return [line_span(file, at.lineno, function_around(nodes, at.lineno)) for at in places]


def _fills(node: ast.AST, key: str) -> bool:
    """`rows["score"].append(score)`"""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") not in ("append", "extend"):
        return False
    into = node.func.value if isinstance(node.func, ast.Attribute) else None
    return (
        isinstance(into, ast.Subscript)
        and isinstance(into.slice, ast.Constant)
        and into.slice.value == key
    )


def is_reshape_to(call: ast.Call, rows: int) -> bool:
    """`x.reshape(2, -1)`"""
    reshapes = getattr(call.func, "attr", "") in ("view", "reshape")
    return reshapes and [ast.unparse(size) for size in _sizes(call)] == [str(rows), "-1"]


def _sizes(call: ast.Call) -> list[ast.expr]:
    """Those that a reshape is given, one by one or as a tuple, behind the tensor where that is its
    first argument."""
    given = list(call.args)
    if given and isinstance(given[-1], (ast.Tuple, ast.List)):
        return given[-1].elts
    return given[-2:]


def written_into_at(functions: Iterable[Any], number: int) -> SourceSpan | None:
    """The only line of these functions of the user's that writes the number into parts of
    something, of several the only one that chooses them by a comparison: `labels[ids == pad] =
    -100`."""
    found = [
        (line_span(code.co_filename, node.lineno, code.co_qualname), parts)
        for code in map(code_of, functions)
        if code is not None and (whole := definition_of(code)) is not None
        for node in ast.walk(whole)
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == str(number)
        if (parts := [t.slice for t in node.targets if isinstance(t, ast.Subscript)])
    ]
    chosen = [line for line, parts in found if any(_compares(part) for part in parts)]
    lines = chosen or [line for line, _ in found]
    return lines[0] if len(lines) == 1 else None


def _compares(part: ast.expr) -> bool:
    return any(isinstance(node, ast.Compare) for node in ast.walk(part))
