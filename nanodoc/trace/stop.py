"""A debugger's prompt in the user's own frame, at one op of a step that is run again."""

from __future__ import annotations

import pdb
import sys
from types import FrameType

from nanodoc.trace.files import USER, frame_kind


def user_frame(depth: int = 1) -> FrameType | None:
    """The deepest frame of the user's own code above the caller."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and frame_kind(frame.f_code.co_filename) != USER:
        frame = frame.f_back
    return frame


def stop_here(what: str) -> None:
    """Opens pdb in the user's frame that called the op; its line has not been finished yet. `q` and
    `c` let the step go on."""
    frame = user_frame(2)
    if frame is None:
        return
    print(
        f"nanodoc: {what}; the line has not finished, and its arguments are in scope (c continues)",
        file=sys.stderr,
    )
    debugger = pdb.Pdb(nosigint=True)
    debugger.reset()
    debugger.interaction(frame, None)
