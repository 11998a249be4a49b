"""Files of nanodoc whose frames may lie between the user's call and torch. They are looked through
when the user's line is sought; other frames of nanodoc end the search, because nanodoc made that
call. Nothing here imports torch or the rest of nanodoc."""

from __future__ import annotations

import sys
from types import FrameType

_INSTRUMENT = __file__.removesuffix("frames.py")
_files: set[str] = set()


def look_through(file: str) -> None:
    """Registers a file whose functions call the user's code. `taps` registers the files of its
    listeners; a file with hooks or modes registers itself when it is imported."""
    _files.add(file)


def is_looked_through(file: str) -> bool:
    """Frames of this file may lie between the user's call and torch."""
    return file in _files


def caller(depth: int = 0) -> FrameType:
    """The frame that called the calling function, without the frames of this package between them;
    with `depth`, that many frames further out."""
    frame = sys._getframe(1)
    for _ in range(depth + 1):
        assert frame.f_back is not None  # a function of nanodoc's is never the outermost
        frame = frame.f_back
        while frame.f_code.co_filename.startswith(_INSTRUMENT) and frame.f_back is not None:
            frame = frame.f_back
    return frame


look_through(_INSTRUMENT + "taps.py")
look_through(_INSTRUMENT + "originals.py")
