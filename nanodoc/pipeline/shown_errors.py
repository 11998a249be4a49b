"""Exceptions of a script, shown as Python shows them: without frames of nanodoc's own."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType

from nanodoc.trace.files import is_ours


def show(error: BaseException) -> None:
    """Shows it, and leaves it as it was."""
    with _without_our_frames(error):
        # Python's own hook, which others go on to, shows the error's frames and not those it is
        # given
        sys.excepthook(type(error), error, error.__traceback__)


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without those frames, wherever they stand."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not is_ours(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    inner = None
    for entry in reversed(kept):
        inner = TracebackType(inner, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return inner


@contextlib.contextmanager
def _without_our_frames(error: BaseException) -> Iterator[None]:
    """The error, and those that it came from or that came while it was handled."""
    before = [(each, each.__traceback__) for each in _chain(error)]
    for each, trace in before:
        each.__traceback__ = without_ours(trace)
    try:
        yield
    finally:
        for each, trace in before:
            each.__traceback__ = trace


def _chain(error: BaseException) -> list[BaseException]:
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in found:
            continue
        found[id(each)] = each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
    return list(found.values())
