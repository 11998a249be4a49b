"""What is kept of an iteration whose step is watched by its losses alone; the rest is as in the
last iteration that was watched in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from nanodoc.script.iteration import (
    Changing,
    IterationStart,
    batch_names,
    batch_of,
    numbers_among,
    start_of,
)
from nanodoc.script.outside import Drawings, Outside
from nanodoc.trace.frame_variables import variables_of_frame


@dataclass(slots=True)
class Glance:
    """The names are those of `IterationStart`."""

    own_batch: Any
    numbers: dict[str, Any]
    recorded: Drawings = field(default_factory=Drawings)


def glance_at(
    frame: FrameType, full: IterationStart | None, bound: Mapping[str, Any] | None
) -> Glance | None:
    """Of the iteration that `frame` is about to run. `full`: the last one that was watched in full;
    None where this one looks otherwise."""
    if full is None or full.batch_is_copy or frame.f_code is not full.code:
        return None
    if frame.f_code.co_name == "<module>":
        variables: Mapping[str, Any] = frame.f_globals
    else:
        variables = variables_of_frame(frame)
    if bound:
        variables = {**variables, **bound}
    loop, known = full.loop, full.variables
    numbers = numbers_among(full.numbers, variables, frame.f_globals)
    if numbers.keys() != full.numbers.keys():
        return None
    names = batch_names(loop, known)
    if any(type(variables.get(name)) is not type(known[name]) for name in names):
        return None
    return Glance(batch_of(names, variables), numbers, Drawings(full.code))


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
    start = full if frame is None else start_of(frame, full.loop, outside, changing)
    return replace(
        start,
        batch=glance.own_batch,
        own_batch=glance.own_batch,
        numbers=glance.numbers,
        recorded=glance.recorded,
    )
