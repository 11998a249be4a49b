"""What logs put around a traceback is taken off: colours, ranks, times, levels, boxes; what each
rank wrote becomes a stream of its own."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[@-Z\\-_]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_RANK = re.compile(r"\[(?:default|[Rr]ank ?)(\d{1,5})\]:? ?")
_RAY = re.compile(r"\([\w.:-]{1,60} pid=(\d{1,8})(?:, ip=[\d.]{7,15})?\) ?")
_COMPOSE = re.compile(r"[a-z][\w.]{0,40}-(\d{1,5}) {1,20}\| ?")
_SRUN = re.compile(r"(\d{1,5}): ?")
_SRUN_USED = re.compile(
    r"^\d{1,5}: ?(?:Traceback \(most recent call last\)|  File \")", re.MULTILINE
)
_TIME = re.compile(
    r"\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?:Z|[+-]\d\d:?\d\d)?\]? ?(?:(?:stdout"
    r"|stderr) [FP] ?)?[:|-]? ?"
)
# the name of a logger stands before the level or behind it ("ERROR:root:", "ERROR - __main__ - "),
# and is not that of the exception itself
_NO_EXCEPTION = (
    r"(?![\w.]*(?:Error|Exception|Warning|Traceback|Interrupt|Exit|Iteration|Unsupported|Failed"
    r"|Empty))"
)
_LEVEL = re.compile(
    r"(?:\[(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\] ?|(?:DEBUG|INFO|WARNING|WARN|ERROR"
    r"|CRITICAL|FATAL)(?: {0,8}[:|-]{1,3} ?| {1,8}))"
    rf"(?:{_NO_EXCEPTION}[\w.]{{1,60}}(?::\d{{1,6}})? ?[:|-] ?)?"
)
_LOGGER = re.compile(
    _NO_EXCEPTION + r"[\w.]{1,60} ?[-:|] ?(?=\[?(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\b)"
)
_NUMBERED = re.compile(r"\[\d{1,8}\] ?")
_NUMBERS_USED = re.compile(
    r"^\[\d{1,8}\] ?(?:Traceback \(most recent call last\)|  File \")", re.MULTILINE
)
_QUOTE = re.compile(r">{1,3} ?")
_QUOTED = re.compile(
    r"^>{1,3} ?(?:Traceback \(most recent call last\)|  File \")"
    r"|\A\s*>[^\n]*(?:\n>[^\n]*){0,10000}\s*\Z",
    re.MULTILINE,
)
_PYTEST = re.compile(r"E {3,7}(?=\S)")
_GROUP_RULE = re.compile(r"\s*\+[-+]+(?: \S+ -+)?\s*")
_GROUP_BAR = re.compile(r"\s*[|+] ?")
_BOX = re.compile(r"[│┃]\s?(.*?)\s*[│┃]?\s*")
HEADER = "Traceback (most recent call last)"
MEMBER = "-- member of an exception group --"
_PREFIXES = 6
_PREFIX_FORMS = (_RANK, _RAY, _COMPOSE, _TIME, _LOGGER, _LEVEL, _PYTEST)
# What pages and editors put in the place of ASCII: quotes, spaces, and the sign between the sides
# of a matrix.
_FOLDED = str.maketrans(
    "\u2018\u2019\u201a\u201c\u201d\u201e\xa0\u2007\u202f\u3000", "'''\"\"\"    ", "\u200b\ufeff"
)
_ENTITY = re.compile(r"&(?:#39|#x27|#34|quot|apos|lt|gt|amp|nbsp);")
_TIMES = re.compile(r"(?<=\d)\u00d7(?=\d)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line without what a log put before it."""

    text: str
    time: str | None
    """As the log wrote it; such times of one log sort as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """What one rank or process wrote, in order."""

    rank: int | None
    lines: tuple[Line, ...]


def plain(text: str) -> str:
    """`text` without colours, control characters and what web pages and word processors make of
    quotes and spaces; a progress bar's carriage returns become line ends."""
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    text = _CONTROL.sub("", text.replace("\u2028", "\n")).translate(_FOLDED)
    text = _TIMES.sub("x", _ENTITY.sub(lambda found: html.unescape(found[0]), text))
    # a progress bar does not end its line before the traceback begins
    return re.sub(rf"(?<=it/s\]|s/it\])(?=\S{{0,40}} ?{re.escape(HEADER)})", "\n", text)


def streams(text: str) -> list[Stream]:
    """The streams of a plain text, in the order of their first lines; lines without a rank are a
    stream of their own."""
    # too plain to be taken off lines of a text that does not put them before its traceback
    used = [
        pattern
        for pattern, sign in ((_SRUN, _SRUN_USED), (_QUOTE, _QUOTED), (_NUMBERED, _NUMBERS_USED))
        if sign.search(text)
    ]
    grouped = "Exception Group Traceback" in text
    found: dict[int | None, list[Line]] = {}
    for raw in text.split("\n"):
        rank, time, line = _stripped(raw, used)
        if grouped:
            line = (
                MEMBER
                if _GROUP_RULE.fullmatch(line)
                else _GROUP_BAR.sub("", line, count=1)
                if _GROUP_BAR.match(line)
                else line
            )
        found.setdefault(rank, []).append(Line(text=_unboxed(line), time=time))
    return [Stream(rank=rank, lines=tuple(lines)) for rank, lines in found.items()]


def _stripped(line: str, used: list[re.Pattern[str]]) -> tuple[int | None, str | None, str]:
    rank, time = None, None
    for _ in range(_PREFIXES):
        for pattern in (*_PREFIX_FORMS, *(use for use in used if use is not _SRUN or rank is None)):
            match = pattern.match(line)
            if match and match.end():
                if pattern is _TIME:
                    time = match[1].replace("T", " ").replace(",", ".")
                elif match.re.groups and rank is None:
                    rank = int(match[1])
                line = line[match.end() :]
                break
        else:
            break
    return rank, time, line


def _unboxed(line: str) -> str:
    """The text inside a box that rich drew."""
    if line[:1] in ("│", "┃"):
        match = _BOX.fullmatch(line)
        return match[1] if match else line
    return line
