"""What an examination asks of a step."""

from __future__ import annotations

from typing import Protocol

from nanodoc.replay.step_state import StepState
from nanodoc.replay.traced_replay import Replay
from nanodoc.trace.examine import Request


class Replays(Protocol):
    """What shows a step, as often as it is asked."""

    @property
    def observing(self) -> bool: ...

    @property
    def repeats(self) -> bool:
        """The step is run again for each question; else what it showed when it ran is all."""
        ...

    def replay(self, capsule: StepState, requests: dict[int, Request] | None = None) -> Replay: ...

    def complete(self, capsule: StepState) -> None: ...

    def rewind(self, capsule: StepState) -> None: ...
