"""What the watching of a loop's calls counts."""

from __future__ import annotations

from typing import Any

from nanodoc.facts.loop import LoopMisuse
from nanodoc.trace.spans import Place, resolved


class Count:
    """How often one kind of misuse was seen."""

    def __init__(self, place: Place | None, other: Place | None, step: int) -> None:
        self.place, self.other, self.first = place, other, step
        self.steps = 0
        self.last = -1
        self.parameters: dict[str, None] = {}
        self.times = 0

    def add(self, step: int) -> None:
        if self.last != step:
            self.last, self.steps = step, self.steps + 1

    def misuse(self, kind: str, watched: int) -> LoopMisuse:
        """As the rules see it."""
        return LoopMisuse(
            kind=kind,
            steps=self.steps,
            watched=watched,
            first_step=self.first,
            location=resolved(self.place),
            other=resolved(self.other),
            parameters=tuple(name for name in self.parameters if name),
            times=self.times,
        )


class Schedule:
    """One learning rate schedule that stepped."""

    def __init__(self, scheduler: Any, place: Place | None, *, first: bool) -> None:
        self.scheduler, self.place, self.first, self.steps = scheduler, place, first, 0
