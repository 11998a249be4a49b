"""What is kept of an iteration whose step is watched by its losses alone; the rest is as in the
last iteration that was watched in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from nanodoc.script.iteration import (
    NUMBERS,
    Changing,
    IterationStart,
    ScriptBatch,
    batch_names,
    start_of,
)
from nanodoc.script.outside import Drawings, Outside
from nanodoc.trace.frame_variables import SomeVariables


@dataclass(slots=True)
class Glance:
    """The names are those of `IterationStart`."""

    own_batch: Any
    numbers: dict[str, Any]
    recorded: Drawings
    bound: Mapping[str, Any] | None
    """What the loop was about to bind."""


class Glances:
    """Of iterations that look like `full`, the last one that was watched in full."""

    def __init__(self, full: IterationStart) -> None:
        self.full = full
        self._code = full.code
        self._of_module = full.code.co_name == "<module>"
        self._numbers = tuple(full.numbers)
        known = full.variables
        self._batch = tuple((name, type(known[name])) for name in batch_names(full.loop, known))
        self._variables = SomeVariables(full.code, (*self._numbers, *(n for n, _ in self._batch)))

    def at(self, frame: FrameType, bound: Mapping[str, Any] | None) -> Glance | None:
        """Of the iteration that `frame` is about to run; None where it looks otherwise."""
        if frame.f_code is not self._code or self.full.batch_is_copy:
            return None
        beside = frame.f_globals
        variables: Mapping[str, Any] = beside if self._of_module else self._variables.of(frame)
        if bound:
            variables = {**variables, **bound}
        numbers = {}
        for name in self._numbers:
            number = variables.get(name, beside.get(name))
            if type(number) not in NUMBERS:
                return None
            numbers[name] = number
        batch, value = ScriptBatch(), None
        for name, kind in self._batch:
            value = variables.get(name)
            if type(value) is not kind:
                return None
            batch[name] = value
        recorded = Drawings()
        recorded.code = self._code
        return Glance(value if len(batch) == 1 else batch, numbers, recorded, bound)


def start_at(
    glance: Glance,
    full: IterationStart,
    running: Iterable[FrameType],
    outside: Outside,
    changing: Changing,
) -> IterationStart:
    """The start of such an iteration while it runs, as far as it can be told by now. `running` are
    the frames of which one is the iteration's."""
    frame = next((frame for frame in running if frame.f_code is full.code), None)
    start = full if frame is None else start_of(frame, full.loop, outside, changing, glance.bound)
    return replace(
        start,
        batch=glance.own_batch,
        own_batch=glance.own_batch,
        numbers=glance.numbers,
        recorded=glance.recorded,
    )
