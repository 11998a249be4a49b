"""Which line of the user's code does something while it runs: the line that changes a value that is
kept, or the one that turns a picture."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from nanodoc.examination.sample import as_tensor
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.frame_variables import variables_of_frame

_MOST_LINES = 20_000
_PIXELS = 16  # a picture has more


class _Lines(ABC):
    """Follows the user's code line by line while it is open, until `found` is set."""

    def __init__(self) -> None:
        self.found: SourceSpan | None = None
        self._left = _MOST_LINES
        self._at: dict[FrameType, int] = {}
        self._last: tuple[FrameType, int] | None = None

    def _begin(self) -> None:
        self._former = sys.gettrace()
        sys.settrace(self._called)

    def __exit__(self, *exc: object) -> None:
        sys.settrace(self._former)
        self._at.clear()
        self._last = None

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if self.found is not None or frame_kind(frame.f_code.co_filename) != USER:
            return None
        return self._traced

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._left -= 1
        if self.found is not None or self._left < 0:
            return None
        if self._last is not None and event in ("line", "return"):
            self._after(self._last[0], self._last[1], frame, arg if event == "return" else None)
        if event == "line":
            self._last = frame, frame.f_lineno
            self._at[frame] = frame.f_lineno
        elif event == "return":
            self._at.pop(frame, None)
            caller = frame.f_back
            if caller in self._at:  # the caller's line goes on
                self._last = caller, self._at[caller]
        return self._traced

    @abstractmethod
    def _after(self, frame: FrameType, line: int, now: FrameType, returned: Any) -> None:
        """A line of `frame` is over, and the user's code goes on in the frame `now`, perhaps by
        giving `returned` back."""

    def _blame(self, frame: FrameType, line: int) -> None:
        code = frame.f_code
        self.found = line_span(code.co_filename, line, code.co_qualname)


class LineThatWrites(_Lines):
    """The line after which `read()` gives another value."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read
        self._values: list[Any] = []
        """The value that was there when the user's code began."""

    def __enter__(self) -> LineThatWrites:
        self._begin()
        return self

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        traced = super()._called(frame, event, arg)
        if traced is not None and not self._values:
            self._values.append(self._read())
        return traced

    def _after(self, frame: FrameType, line: int, now: FrameType, returned: Any) -> None:
        value, before = self._read(), self._values[0]
        if value != before and not (value != value and before != before):
            self._blame(frame, line)


class LineThatTurns(_Lines):
    """The line after which a local variable, or what is returned, holds a picture that was seen
    before mirrored or turned.

    `picture` gives the plane of what is a picture, `turned` compares two of them. `of_two`: it is
    to be told from what belongs to it, so that a function that was given nothing but one of the
    two is not to blame, but its caller.
    """

    def __init__(
        self,
        picture: Callable[[Any], torch.Tensor | None],
        turned: Callable[[torch.Tensor, torch.Tensor], bool],
        *,
        of_two: bool = False,
    ) -> None:
        super().__init__()
        self._of_two = of_two
        self._picture = picture
        self._turned = turned
        self._known: dict[int, Any] = {}
        self._first: dict[torch.Size, torch.Tensor] = {}

    def __enter__(self) -> LineThatTurns:
        self._begin()
        return self

    def seen_before(self, picture: torch.Tensor) -> None:
        """One that lay there before the code ran."""
        self._first.setdefault(picture.shape, picture)

    def _after(self, frame: FrameType, line: int, now: FrameType, returned: Any) -> None:
        frames = (now,) if frame is now else (now, frame)
        values = [value for each in frames for value in variables_of_frame(each).values()]
        if returned is not None:
            values += returned if isinstance(returned, (list, tuple)) else [returned]
        for value in values:
            if id(value) in self._known or isinstance(value, (int, float, str, type(None))):
                continue
            self._known[id(value)] = value  # held, so that its identity stays its own
            picture = self._picture(value)
            if picture is None:
                continue
            if any(self._turned(picture, first) for first in self._first.values()):
                self._blame(frame, line)
                return
            self._first.setdefault(picture.shape, picture)

    def _blame(self, frame: FrameType, line: int) -> None:
        while self._of_two and _was_given_one(frame) and frame.f_back in self._at:
            frame = frame.f_back
            line = self._at[frame]
        super()._blame(frame, line)


def _was_given_one(frame: FrameType) -> bool:
    """Among the arguments of the function is one picture or mask."""
    code, found = frame.f_code, 0
    for name in code.co_varnames[: code.co_argcount]:
        value = frame.f_locals.get(name)
        inner = list(value.values()) if isinstance(value, dict) else value
        parts = inner if isinstance(inner, (list, tuple)) else [inner]
        found += sum(_is_flat(part) for part in parts)
    return found == 1


def _is_flat(value: Any) -> bool:
    tensor = as_tensor(value)
    return tensor is not None and tensor.dim() in (2, 3) and tensor.numel() >= _PIXELS
