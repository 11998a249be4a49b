"""Learning rate schedules of other libraries than torch: objects that keep one of the run's
optimizers and step, without being optimizers themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.facts.loop import SchedulerFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import function_around, nodes_of


def other_schedules(
    values: Iterable[Any], optimizers: list[torch.optim.Optimizer], files: Iterable[str]
) -> Iterator[SchedulerFacts]:
    """Of the `values` that the step reads; each with the only line of the user's `files` that
    makes one of its class."""
    known = {id(optimizer) for optimizer in optimizers}
    files = [file for file in dict.fromkeys(files) if frame_kind(file) == USER]
    for value in values:
        held = getattr(value, "__dict__", None)
        if (
            isinstance(held, dict)
            and id(held.get("optimizer")) in known
            and not isinstance(value, (LRScheduler, torch.optim.Optimizer))
            and "param_groups" not in held  # wrappers of an optimizer
            and callable(getattr(type(value), "step", None))
        ):
            kind = type(value).__name__
            yield SchedulerFacts(type=kind, built_at=_made_at(kind, files))


def named_at(kind: str, files: Iterable[str]) -> SourceSpan | None:
    """The only line of the user's `files` that names a class of schedules, but for imports: a
    library that is given it makes the schedule."""
    found = {
        (file, node.lineno)
        for file in dict.fromkeys(files)
        if frame_kind(file) == USER
        for node in nodes_of(file)
        if isinstance(node, (ast.Name, ast.Attribute))
        and kind in (getattr(node, "id", None), getattr(node, "attr", None))
    }
    if len(found) != 1:
        return None
    [(file, line)] = found
    return line_span(file, line, function_around(nodes_of(file), line))


def _made_at(kind: str, files: list[str]) -> SourceSpan | None:
    found = [
        (file, node.lineno)
        for file in files
        for node in nodes_of(file)
        if isinstance(node, ast.Call)
        and kind in (getattr(node.func, "id", None), getattr(node.func, "attr", None))
    ]
    if len(found) != 1:
        return None
    [(file, line)] = found
    return line_span(file, line, function_around(nodes_of(file), line))
