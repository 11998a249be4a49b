"""The exceptions nanodoc raises, each with the exit code its command line ends with, and the phases
of a training that they speak of."""

from __future__ import annotations

import os
from typing import Literal

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_CLINIC = os.path.join(_PACKAGE, "clinic", "")  # trainings, as a user's
_SLIPS = (NameError, AttributeError, AssertionError)

Phase = Literal[
    "start", "setup", "data", "forward", "backward", "unscale", "optimizer", "examination", "script"
]
"""Where a training is: before anything of it ran, in its import and `build()`, in a step's parts,
at its end, when nanodoc looks into what it saw, or in a script outside of its training's steps."""


class NanodocError(Exception):
    """Base of nanodoc's own errors; `str(error)` is one line that says what to do."""

    exit_code = 3


class UsageError(NanodocError):
    """The entrypoint, an option, the configuration or a file is not usable as given."""

    exit_code = 2


class InternalError(NanodocError):
    """An error of nanodoc's own, in the process that ran the training."""

    def __init__(self, said: str) -> None:
        super().__init__(f"internal error: {said}")


class UserCodeError(Exception):
    """An exception of the user's own code, kept whole so that it can become a finding.

    `phase` is "setup" (import and `build()`), "data", "forward", "backward", "optimizer" or
    "script" (outside of the steps of its training).
    """

    def __init__(self, cause: BaseException, phase: Phase) -> None:
        super().__init__(f"{type(cause).__name__}: {said(cause)}")
        self.cause = cause
        self.phase = phase


def chosen_end(error: UserCodeError) -> bool:
    """The training left by sys.exit() or sys.exit(0): it has ended, and nothing failed."""
    return isinstance(error.cause, SystemExit) and error.cause.code in (None, 0)


def said(error: BaseException) -> str:
    """What an exception says; some raise when they are asked."""
    try:
        return str(error)
    except Exception as failed:
        return f"(its __str__ raises {type(failed).__name__})"


def is_users(error: BaseException) -> bool:
    """Whether an exception that left the user's code is theirs to be told of: anything but Ctrl-C,
    and what went wrong in a frame of nanodoc's own, which stands between their code and torch."""
    return not isinstance(error, KeyboardInterrupt) and not _is_ours(error)


def _is_ours(error: BaseException) -> bool:
    """A slip of Python's own kind, raised in a frame of nanodoc's. What torch's C functions raise
    has our frame as the last one, too: they are called from there."""
    trace = error.__traceback__
    if trace is None or not isinstance(error, _SLIPS):
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(_PACKAGE) and not file.startswith(_CLINIC)
