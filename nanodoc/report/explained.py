"""The answer to a pasted error, for a reader and as JSON: one compiler-style block, as for a
finding."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console
from rich.text import Text

from nanodoc.explain.answer import Answer
from nanodoc.explain.frames import Frame
from nanodoc.text import clean

_STYLES = {"headline": "bold red", "warning": "bold yellow", "help": "bold cyan", "gutter": "blue"}
_SHOWN_LINES, _LONGEST_LINE = 4, 240
_SHOWN_OTHERS, _LONGEST_OTHER = 3, 100
UNKNOWN = "this message is not in the knowledge base"
NEXT, NEXT_OF_INSTALLATION = "nanodoc run train.py", "nanodoc env"
_OF_INSTALLATION = re.compile(
    r"(?:ImportError|ModuleNotFoundError|OSError|LinkError|CDLL|LoadError)\b|\bDLL\b"
    r"|\.so(?:\.\d{1,4}){0,3}\b|\.dll\b|undefined symbol"
)
# the traces of JavaScript, Java and C#
_NOT_PYTHON = re.compile(r"^\s{1,8}at [\w.$<>]{1,200}[ (:]", re.MULTILINE)


def render(
    answer: Answer,
    *,
    width: int = 120,
    color: bool = False,
    rules: frozenset[str] = frozenset(),
    note: str = "",
) -> str:
    """The answer as text; `rules` are the codes that `nanodoc explain` knows, `note` says what was
    left out of the paste."""
    out = Text()
    told = answer.explanation
    warned = answer.raised is not None and answer.raised.is_warning
    word, style = ("warning", _STYLES["warning"]) if warned else ("error", _STYLES["headline"])
    code = f"[{told.rule}]" if told and told.rule in rules else ""
    out.append(f"{word}{code}", style).append(
        f": {clean(told.title) if told else UNKNOWN}\n", "bold"
    )
    gutter = _source(out, answer.frame, style)
    for line in _message(answer):
        _note(out, gutter, line)
    if told is None:
        _note(
            out,
            gutter,
            "nanodoc has no entry for it; start from the message and its line",
        )
        _next(out, gutter, next_of_unknown(answer))
    else:
        _note(out, gutter, clean(told.means))
        _note(out, gutter, "likeliest causes:" if len(told.causes) > 1 else "likeliest cause:")
        for number, cause in enumerate(told.causes, 1):
            out.append(f"{gutter}     {number}. {clean(cause)}\n")
        _help(out, gutter, told.fix)
        _next(out, gutter, told.next)
        if told.rule in rules:
            _note(out, gutter, f"more: nanodoc explain {told.rule}")
    _note(out, gutter, _others(answer))
    _note(out, gutter, clean(note))
    buffer = io.StringIO()
    console = Console(
        force_jupyter=False,  # it would show the text itself, and give none
        file=buffer,
        force_terminal=color,
        no_color=not color,
        width=width,
        color_system="standard" if color else None,
        highlight=False,
    )
    console.print(out, soft_wrap=True, end="")  # `out` ends its own lines
    return buffer.getvalue()


def document(answer: Answer, rules: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The answer as JSON's plain types; what is not known is null."""
    told, raised, frame = answer.explanation, answer.raised, answer.frame
    return {
        "schema": 1,
        "known": told is not None,
        "id": told.id if told else None,
        "title": told.title if told else None,
        "means": told.means if told else None,
        "causes": list(told.causes) if told else [],
        "fix": told.fix if told else None,
        "next": told.next if told else next_of_unknown(answer) or None,
        "rule": told.rule if told and told.rule in rules else None,
        "effect": told.effect if told else None,
        "error": {"type": raised.type, "message": raised.message, "rank": raised.rank}
        if raised
        else None,
        "location": {
            "file": frame.file,
            "line": frame.line,
            "function": frame.function,
            "code": frame.code,
        }
        if frame
        else None,
        "others": list(answer.others),
    }


def next_of_unknown(answer: Answer) -> str:
    """The command that may help with a message nobody knows; empty where none would."""
    raised = answer.raised
    if raised is None or raised.is_warning or _NOT_PYTHON.search(answer.text):
        return ""
    return NEXT_OF_INSTALLATION if _OF_INSTALLATION.search(raised.headline) else NEXT


def _source(out: Text, frame: Frame | None, style: str) -> str:
    """The user's own line; returns the gutter's indent."""
    if frame is None:
        return " "
    number = str(frame.line) if frame.line is not None else ""
    gutter = " " * max(1, len(number))
    place = clean(frame.file) + (f":{number}" if number else "")
    out.append(f"{gutter}--> ", _STYLES["gutter"]).append(
        f"{place}{f' in {clean(frame.function)}' if frame.function else ''}\n"
    )
    if frame.code is None:
        return gutter
    code = clean(frame.code.expandtabs(4))
    start, end = frame.mark or (0, len(code))
    out.append(f"{gutter} |\n", _STYLES["gutter"])
    out.append(f"{number:>{len(gutter)}} | ", _STYLES["gutter"]).append(f"    {code}\n")
    out.append(f"{gutter} | ", _STYLES["gutter"]).append(
        "    " + " " * start + "^" * max(1, min(end, len(code)) - start) + "\n", style
    )
    return gutter


def _message(answer: Answer) -> list[str]:
    raised = answer.raised
    if raised is None or raised.type == "Traceback":
        return [_short(answer.explanation.matched)] if answer.explanation else []
    lines = [" ".join(line.split()) for line in raised.headline.split("\n") if line.strip()]
    shown = [_short(line) for line in lines[:_SHOWN_LINES]]
    if len(lines) > _SHOWN_LINES:
        shown.append(f"… ({len(lines) - _SHOWN_LINES} more lines)")
    if raised.rank is not None and shown:
        shown[0] = f"rank {raised.rank}: {shown[0]}"
    return shown


def _short(line: str) -> str:
    return clean(line[:_LONGEST_LINE]) + (" …" if len(line) > _LONGEST_LINE else "")


def _others(answer: Answer) -> str:
    if not answer.others:
        return ""
    shown = "; ".join(clean(line[:_LONGEST_OTHER]) for line in answer.others[:_SHOWN_OTHERS])
    more = len(answer.others) - _SHOWN_OTHERS
    return f"also in this text: {shown}{f'; and {more} more' if more > 0 else ''}"


def _note(out: Text, gutter: str, text: str) -> None:
    if text:
        out.append(f"{gutter} = ", _STYLES["gutter"]).append(text + "\n")


def _next(out: Text, gutter: str, command: str) -> None:
    _note(out, gutter, f"next: {clean(command)}" if command else "")


def _help(out: Text, gutter: str, fix: str) -> None:
    first, *rest = fix.split("\n")
    out.append(f"{gutter} = ", _STYLES["gutter"]).append("help", _STYLES["help"]).append(
        f": {clean(first)}\n"
    )
    for line in rest:
        out.append(f"{gutter}         {clean(line)}\n")
