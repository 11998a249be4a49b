"""Text that a page, a chat or a terminal broke into lines of its own width, put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

# Below this width no traceback is readable, and above it nobody breaks lines. Longer texts are
# logs, which are not typed over.
_WIDTHS = range(20, 400)
_LONGEST_TEXT = 64_000
# A message that was broken by hand, at no even width.
_LONGEST_MESSAGE = 2_000


def unwrapped(text: str) -> Iterator[str]:
    """The texts that may have been broken up: at a column, in the middle of words; or between
    words."""
    if len(text) > _LONGEST_TEXT:
        return
    lines = [line.rstrip("\r") for line in text.split("\n")]
    width = max(len(line) for line in lines)
    if width not in _WIDTHS or len(lines) < 2:
        return
    yield _joined(lines, lambda line, after: len(line) == width, "")
    # a line ends where the next word would not have fitted
    yield _joined(
        lines,
        lambda line, after: (
            bool(after.split()) and len(line.rstrip()) + 1 + len(after.split()[0]) > width
        ),
        " ",
    )


def on_one_line(message: str) -> Iterator[str]:
    """A message of several lines as one, broken between words or in the middle of them."""
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    if len(lines) > 1 and len(message) <= _LONGEST_MESSAGE:
        yield " ".join(lines)
        yield "".join(lines)


def _joined(lines: list[str], goes_on: Callable[[str, str], bool], between: str) -> str:
    out = [lines[0]]
    for line, after in pairwise(lines):
        if line and goes_on(line, after):
            out[-1] += between + (after.lstrip() if between else after)
        else:
            out.append(after)
    return "\n".join(out)
