"""Where the user's files make a transform of pictures that does what was seen of a sample: read
from the source, since the transform's own code is a library's."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import function_around, nodes_of

_MOVES = re.compile(r"(?i)rot|flip|affine|crop|zoom|shift|elastic|warp|perspective")
_WRITES = ("Normalize", "RandomErasing")
"""Transforms of torchvision that write into the picture they are given, by `inplace=True`."""

_SCALES = ("ToTensor", "ConvertImageDtype", "convert_image_dtype", "to_tensor")
"""Those that make 0 … 1 of a picture's 0 … 255."""


def moves_only(part: str, other: str) -> SourceSpan | None:
    """The first transform of dictionaries that moves one part of a sample, `keys="image"`, and not
    the other."""
    for file, nodes, call in _calls():
        if not _MOVES.search(_name(call)):
            continue
        keys = next((k.value for k in call.keywords if k.arg == "keys"), None)
        named = {n.value for n in ast.walk(keys) if isinstance(n, ast.Constant)} if keys else set()
        if part in named and other not in named:
            return line_span(file, call.lineno, function_around(nodes, call.lineno))
    return None


def writes_in_place() -> SourceSpan | None:
    """The only transform that is told to write into its picture."""
    found = [
        line_span(file, call.lineno, function_around(nodes, call.lineno))
        for file, nodes, call in _calls()
        if _name(call) in _WRITES
        and any(
            k.arg == "inplace" and isinstance(k.value, ast.Constant) and k.value.value is True
            for k in call.keywords
        )
    ]
    return found[0] if len(found) == 1 else None


def leaves_unscaled() -> SourceSpan | None:
    """The only transform that makes numbers of a picture and leaves them between 0 and 255:
    torchvision's `ToDtype` of a floating type without `scale=True`, or `PILToTensor` where nothing
    scales behind it."""
    calls = list(_calls())
    scales = any(_name(call) in _SCALES or _is_told_to_scale(call) for _, _, call in calls)
    found = [
        line_span(file, call.lineno, function_around(nodes, call.lineno))
        for file, nodes, call in calls
        if _name(call) == "ToDtype" or (_name(call) == "PILToTensor" and not scales)
        if not _is_told_to_scale(call)
    ]
    return found[0] if len(set(found)) == 1 else None


def _is_told_to_scale(call: ast.Call) -> bool:
    return any(
        k.arg == "scale" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in call.keywords
    )


def _calls() -> Iterator[tuple[str, Sequence[ast.AST], ast.Call]]:
    """Those in the user's files that are loaded, in the order in which they stand."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    for file in dict.fromkeys(filter(None, files)):
        if not file.endswith(".py") or frame_kind(file) != USER:
            continue
        nodes = nodes_of(file)
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: call.lineno):
            yield file, nodes, call


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
