"""An exception of the user's code as facts: its message and the traceback trimmed to the user's
frames."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nanodoc.errors import UserCodeError, said
from nanodoc.facts.failure import Failure
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import LIBRARY, SKIP, USER, frame_kind, line_span, torch_file
from nanodoc.trace.spans import traceback_spans

_LONGEST_MESSAGE = 2000
_LONGEST_CAUSE = 200
_CALLS_OPS = "_ops.py"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_COLLATES = "self.collate_fn("  # as the loader's fetcher calls it
# A worker process re-raises with its own traceback as text inside the message.
_WORKER_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s+(?P<code>.+)'
)


def describe_failure(error: UserCodeError) -> Failure:
    """The facts of `error.cause`. `frames` are the user's, or a library's where the user has
    none."""
    cause = error.cause
    if (
        isinstance(cause, RuntimeError)
        and isinstance(cause.__cause__, StopIteration)
        and "generator raised" in said(cause)
    ):
        cause = cause.__cause__  # PEP 479 wraps it; its own traceback begins in the generator
    spans, message = traceback_spans(cause.__traceback__), _COLOURS.sub("", said(cause))
    user = [span for span, kind, _ in spans if kind == USER]
    # a compiler's or a worker's exception names the user's lines in its text
    frames = user or _worker_frames(message) or [span for span, kind, _ in spans if kind == LIBRARY]
    collating = (
        any(_COLLATES in span.code for span, kind, _ in spans if kind == SKIP)
        or _COLLATES in message
    )
    if "in DataLoader worker process" in message.split("\n")[0]:
        frames = _worker_frames(message) or frames
        message = re.sub(
            rf"^(?:\w+\.)*{type(cause).__name__}: ", "", message.strip().split("\n")[-1]
        )
    # a dispatch mode calls every op by a function of torch's, which says nothing of the call
    last = next(
        (span for span in reversed(spans) if torch_file(span[2].co_filename) != _CALLS_OPS), None
    )
    notes = (*(str(note)[:500] for note in getattr(cause, "__notes__", ())), *_raised_from(cause))
    return Failure(
        type=type(cause).__name__,
        message=message[:_LONGEST_MESSAGE],
        phase=error.phase,
        frames=tuple(frames),
        raised_by_torch=_raised_by_torch(spans),
        torch_function=last[0].function if last and torch_file(last[2].co_filename) else None,
        notes=notes,
        origin=torch_file(last[2].co_filename) if last is not None else "",
        collating=collating,
    )


def _raised_from(error: BaseException) -> tuple[str, ...]:
    """The exception that this one was raised from, or while it was handled, in a line."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is None or (type(before), said(before)) == (type(error), said(error)):
        return ()  # a replay raises the exception of the step once more
    users = [span for span, kind, _ in traceback_spans(before.__traceback__) if kind == USER]
    at = f", {users[-1].file}:{users[-1].line}" if users else ""
    text = " ".join(_COLOURS.sub("", said(before)).split())
    return (f"raised from {type(before).__name__}: {text[:_LONGEST_CAUSE]}{at}",)


def _raised_by_torch(spans: Sequence[tuple[SourceSpan, int, object]]) -> bool:
    """False when the user's own `raise` or `assert` is the innermost frame."""
    if not spans:
        return True
    span, kind, _ = spans[-1]
    # `if bad: raise …` begins with another word
    own = span.code[max(0, span.column - 1 - span.indent) :]
    return kind == SKIP or not own.startswith(("raise", "assert"))


def _worker_frames(message: str) -> list[SourceSpan]:
    found = [
        (match["file"], int(match["line"]), match["function"])
        for match in _WORKER_FRAME.finditer(message)
    ]
    return [
        line_span(file, line, function)
        for file, line, function in found
        if frame_kind(file) == USER
    ]
