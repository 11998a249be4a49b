"""A second run's close look: every line of the user's code is noted down before it runs, so that
the last one noted is the one the process died on."""

from __future__ import annotations

import sys
import threading
from dataclasses import asdict
from types import FrameType
from typing import Any

from nanodoc.errors import Phase
from nanodoc.heartbeat.last_words import where
from nanodoc.heartbeat.trail import EXAMINATION, TrailWriter
from nanodoc.trace.files import USER, frame_kind, line_span, torch_file


class LineWatch:
    """Watches the main thread from the given step on; None: from the start."""

    def __init__(self, crumbs: TrailWriter, step: int | None) -> None:
        self._crumbs = crumbs
        self._step = step
        self._call: str | None = None
        self._item: int | None = None
        self._left: FrameType | None = None
        self._words: dict[str, Any] = {}

    def __enter__(self) -> LineWatch:
        self._crumbs.on_phase = self._phase
        if self._step is None:
            self._begin()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._crumbs.on_phase = None
        self._end()

    def _phase(self, step: int | None, phase: Phase) -> None:
        if phase == EXAMINATION:
            self._end()
        elif (
            step is not None
            and self._step is not None
            and step >= self._step
            and sys.gettrace() is None
        ):
            self._begin()

    def _begin(self) -> None:
        sys.settrace(self._called)
        sys.setprofile(self._profiled)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:  # frames that run already are not traced unless they are told
            if frame_kind(frame.f_code.co_filename) == USER:
                frame.f_trace = self._line
            frame = frame.f_back

    def _end(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame_kind(frame.f_code.co_filename) != USER:
            return None
        code = frame.f_code
        if code.co_name == "__getitem__" and code.co_argcount == 2:
            index = frame.f_locals.get(code.co_varnames[1])
            self._item = index if isinstance(index, int) else None
        return self._line

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            self._left = frame  # it is left by an exception, which is still on its way
            return self._line
        if event == "return" and frame.f_code.co_name == "__getitem__" and self._left is not frame:
            self._item = None
        shown = frame.f_back if event == "return" else frame
        if shown is not None and frame_kind(shown.f_code.co_filename) == USER:
            self._call = None
            self._words = where(shown, self._crumbs)
            code = shown.f_code  # the line has only begun: nobody knows yet which part of it
            self._words["frames"][-1:] = [
                asdict(line_span(code.co_filename, shown.f_lineno, code.co_qualname))
            ]
            self._say()
        return self._line

    def _profiled(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call" or threading.current_thread() is not threading.main_thread():
            return
        module = getattr(arg, "__module__", None) or type(getattr(arg, "__self__", None)).__module__
        file = frame.f_code.co_filename
        if (
            module.startswith("nanodoc")
            or module == "builtins"
            or not (frame_kind(file) == USER or torch_file(file))
        ):
            return
        self._call = (
            f"{module}.{arg.__name__}".removeprefix("torch._C._nn.")
            .removeprefix("torch._C.")
            .removeprefix("torch.")
        )
        self._say()

    def _say(self) -> None:
        self._crumbs.say({"said": "line", "call": self._call, "item": self._item, **self._words})
