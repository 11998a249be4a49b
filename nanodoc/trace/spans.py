"""Where in the user's source an op was called: frames while tracing, lines and columns
afterwards."""

from __future__ import annotations

import linecache
import sys
import textwrap
from functools import lru_cache
from types import CodeType, FrameType, TracebackType

from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import engine_run_backward
from nanodoc.trace.files import LIBRARY, SKIP, STOP, USER, frame_kind, shown_path
from nanodoc.trace.statements import stands_behind_loop, statements_of

# Frames below this one belong to the backward pass; those above it only called backward().
ENGINE: CodeType | None = getattr(engine_run_backward, "__code__", None)

Place = tuple[CodeType, int]


def calling_places(depth: int) -> tuple[Place | None, Place | None]:
    """The deepest frame outside torch and nanodoc, and the user's own frame if the deepest lies in
    an installed library.

    Frames that merely called `backward()` don't count while the autograd engine runs. `depth`
    frames are left out.
    """
    library: Place | None = None
    try:
        frame = sys._getframe(depth)
    except ValueError:  # a thread of autograd's own has no more frames than ours
        return None, None
    while frame is not None:
        code = frame.f_code
        kind = frame_kind(code.co_filename)
        if kind == USER:
            here = (code, frame.f_lasti)
            return (library, here) if library else (here, None)
        if kind == STOP or code is ENGINE:
            break
        if kind == LIBRARY and library is None:
            library = (code, frame.f_lasti)
        frame = frame.f_back  # type: ignore[assignment]  # typeshed: the loop's end is the None of the outermost frame
    return library, None


def codes_above(frame: FrameType | None) -> frozenset[CodeType]:
    """The user's code that runs in a frame and in those that called it."""
    found = set()
    while frame is not None:
        if frame_kind(frame.f_code.co_filename) == USER:
            found.add(frame.f_code)
        frame = frame.f_back
    return frozenset(found)


def caller_of(place: Place | None) -> Place | None:
    """The user's call of the function around `place`, which is running; None on a module's own
    level."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (place is None or frame.f_code is not place[0]):
        frame = frame.f_back
    above = frame.f_back if frame is not None else None
    if above is None or frame_kind(above.f_code.co_filename) != USER:
        return None
    return above.f_code, above.f_lasti


def call_of_helper(place: Place | None) -> Place | None:
    """The user's call of the function around `place`, which is running, where the statement there
    reads one of the function's arguments as a whole: whoever gave it has decided. None for a
    statement that decides by itself, or on a module's own level."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (place is None or frame.f_code is not place[0]):
        frame = frame.f_back
    if frame is None or frame.f_back is None:
        return None
    code, above = frame.f_code, frame.f_back
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    statement = statements_of(code.co_filename).get(frame.f_lineno)
    read = set(statement.names) - statement.bound if statement is not None else set()
    if not read & set(arguments) or frame_kind(above.f_code.co_filename) != USER:
        return None
    return above.f_code, above.f_lasti


def left_loop(late: Place | None, inner: Place | None) -> bool:
    """`late` stands behind the innermost loop around `inner`, in the same function."""
    if late is None or inner is None or late[0] is not inner[0]:
        return False
    lines = resolve(*inner), resolve(*late)
    if lines[0] is None or lines[1] is None:
        return False
    return stands_behind_loop(inner[0].co_filename, lines[0].line, lines[1].line)


def resolved(place: Place | None) -> SourceSpan | None:
    """The source span of a place; None where there is none, or the compiler kept no position."""
    return resolve(*place) if place is not None else None


def resolve(code: CodeType, lasti: int) -> SourceSpan | None:
    """The source span of the instruction at `lasti` in `code`, or None where the compiler kept no
    position."""
    return _resolve(code.co_filename, code, lasti)


@lru_cache(maxsize=4096)
def _resolve(filename: str, code: CodeType, lasti: int) -> SourceSpan | None:
    """By file, too: equal code of two files compares equal."""
    positions = list(code.co_positions())
    index = lasti // 2
    if not 0 <= index < len(positions):
        return None
    line, end_line, column, end_column = positions[index]
    if line is None:
        return None
    end_line = end_line or line
    lines = [
        linecache.getline(code.co_filename, number).rstrip("\n")
        for number in range(line, end_line + 1)
    ]
    # co_positions counts UTF-8 bytes; a reader counts characters
    first = _characters(lines[0], column or 0)
    last = _characters(lines[-1], end_column if end_column is not None else len(lines[-1].encode()))
    code_text = textwrap.dedent("\n".join(lines)).strip()
    return SourceSpan(
        file=shown_path(code.co_filename),
        line=line,
        end_line=end_line,
        column=first + 1,
        end_column=last + 1,
        function=code.co_qualname.replace(".<locals>", ""),
        code=code_text,
        indent=max(0, lines[0].find(code_text.split("\n")[0])),
    )


def _characters(line: str, offset: int) -> int:
    return len(line.encode()[:offset].decode(errors="ignore"))


def traceback_spans(traceback: TracebackType | None) -> list[tuple[SourceSpan, int, CodeType]]:
    """Every frame of a traceback outside nanodoc, outermost first, with its `frame_kind` and
    code."""
    spans = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        kind = frame_kind(code.co_filename)
        span = resolve(code, traceback.tb_lasti) if kind in (USER, LIBRARY, SKIP) else None
        if span is not None:
            spans.append((span, kind, code))
        traceback = traceback.tb_next
    return spans
