"""What a session does, and what it ends a training with."""

from __future__ import annotations

from enum import Enum, auto


class ScriptEnded(BaseException):
    """Ends the script, since its training is sick or has made the steps that were asked for."""


class TrainingIsSick(RuntimeError):
    """Ends a training that calls nanodoc itself; the message names what was found first."""


ENDED = (ScriptEnded, TrainingIsSick)


class State(Enum):
    """What the session does."""

    ASLEEP = auto()
    SEARCHING = auto()
    FIRST = auto()
    """The loop is known, and its first step is not over."""
    WATCHING = auto()
    OVER = auto()
