"""The user's lines of a TorchScript module's ops: no Python frame runs there, but the module's
graph remembers where each op stood in the source."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span

_SCRIPTED = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")


class ScriptedLines:
    """Of one TorchScript module the lines of its ops, where the source says which one it is."""

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._module = module
        self._lines: dict[str, set[SourceSpan]] | None = None

    def line_of(self, op: str) -> SourceSpan | None:
        """The one user's line that holds op `op` ("div"); None where none does, or several do."""
        if self._lines is None:
            self._lines = {}
            for node in _nodes(_graph(self._module)):
                name = str(node.kind()).rpartition("::")[2].strip("_")
                found = _user_line(str(node.sourceRange()))
                if found is not None:
                    self._lines.setdefault(name, set()).add(found)
        lines = self._lines.get(op, set())
        return next(iter(lines)) if len(lines) == 1 else None


def _graph(module: torch.jit.ScriptModule) -> Any:
    try:
        return module.inlined_graph
    except (AttributeError, RuntimeError):  # a module whose forward is no scripted method
        return None


def _nodes(block: Any) -> Iterator[Any]:
    if block is None:
        return
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _user_line(source: str) -> SourceSpan | None:
    """The line that a node's source range names, if it lies in the user's own code."""
    scripted = _SCRIPTED.search(source)
    if scripted is not None:
        return _line(scripted["file"], int(scripted["line"]), "forward")
    for frame in source.splitlines():  # of a traced module the whole stack, innermost first
        traced = _TRACED.match(frame)
        if traced is not None and frame_kind(traced["file"]) == USER:
            return _line(traced["file"], int(traced["line"]), traced["function"])
    return None


def _line(file: str, line: int, function: str) -> SourceSpan | None:
    """A module that was loaded brings the paths of wherever it was made: only files of modules that
    run here are looked into."""
    loaded = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    known = file in loaded and frame_kind(file) == USER
    return line_span(file, line, function) if known else None
