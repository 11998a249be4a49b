"""Pasted text taken apart: the exceptions in it, how they are chained, their frames, and the rank
that wrote them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nanodoc.explain.frames import ARROW, CARETS, Frame, frame_of, with_arrow, with_code
from nanodoc.explain.lines import HEADER, MEMBER, Line, Stream, plain, streams

# How an exception relates to the one before it in its chain.
ALONE, CAUSED, DURING, ORIGIN, OF_GROUP = "", "cause", "context", "origin", "group"

_LINKS = (
    (
        CAUSED,
        re.compile(r"\s*The above exception was the direct cause of the following exception:"),
    ),
    (DURING, re.compile(r"\s*During handling of the above exception, another exception occurred:")),
    # what follows is the traceback of the process or thread where it began
    (
        ORIGIN,
        re.compile(
            rf"\s*(?:Original {re.escape(HEADER)}|-- Process \d+ terminated with the following "
            r"error:)"
        ),
    ),
    (OF_GROUP, re.compile(re.escape(MEMBER))),
)
_NAME = r"[A-Za-z_]\w{0,80}"
# A line of its own, at the place where a traceback ends, may be any dotted name; elsewhere only a
# name that says it is an exception.
_HEADLINE = re.compile(
    rf"(?P<type>(?:{_NAME}\.){{0,8}}(?:\w{{0,80}}(?:Error|Exception|Warning|Interrupt|Exit"
    r"|Iteration|Group|Unsupported|Failed|Empty)))"
    r"(?::[ \t]?(?P<message>.*))?"
)
_ANY_HEADLINE = re.compile(rf"(?P<type>(?:{_NAME}\.){{0,8}}{_NAME})(?::[ \t](?P<message>.*)|:?)")
_WARNING = re.compile(
    rf"(?P<file>(?:[A-Za-z]:(?=[\\/]))?\S[^\n:]{{0,500}}?):(?P<line>\d{{1,9}}): "
    rf"(?P<type>(?:{_NAME}\.){{0,8}}{_NAME}Warning): (?P<message>.*)"
)
# IPython names the exception before its traceback
_ANNOUNCED = re.compile(rf"(?!Original|Exception)[A-Za-z_][\w.]{{0,120}}\s+{re.escape(HEADER)}")
_GLOG = re.compile(r"\[?[IWEF]\d{4} |\[[IWEF] |[IWEF]\d{8} |-{20,}|[╭╰─]|={20,}$")
_NATIVE = re.compile(r"\s*terminate called after throwing an instance of '(?P<type>[^'\n]{1,200})'")
_WHAT = re.compile(r"\s*what\(\): {1,4}(?P<message>.*)")
# where Dynamo says which line of the program it was tracing, below its message
_TRACED = "from user code:"
_FIRST_FAILED = re.compile(
    r"Root Cause \(first observed failure\):.{0,400}?rank\s*: (\d+)", re.DOTALL
)
_MOST_MESSAGE_LINES = 200
# Of a log that repeats an error at every step, the first and last ones are enough.
_MOST_CHAINS = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Raised:
    """One exception of a paste, or a warning."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    link: str = ALONE
    rank: int | None = None
    time: str | None = None

    @property
    def headline(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def is_warning(self) -> bool:
        return self.type.endswith("Warning")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Exceptions that belong together, in the order of the paste."""

    raised: tuple[Raised, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Paste:
    """What a text holds."""

    text: str
    chains: tuple[Chain, ...]
    first_failed: int | None
    """The rank that the launcher's summary names as the first to fail."""


def parse(text: str) -> Paste:
    """The exceptions of any text; one without any gives no chains, and nothing is raised."""
    text = plain(text)
    failed = _FIRST_FAILED.search(text)
    chains = tuple(chain for stream in streams(text) for chain in _Reader(stream).chains())
    if len(chains) > _MOST_CHAINS:
        chains = chains[: _MOST_CHAINS // 2] + chains[-_MOST_CHAINS // 2 :]
    return Paste(
        text=text,
        chains=chains,
        first_failed=int(failed[1]) if failed and len(failed[1]) < 6 else None,
    )


class _Reader:
    """Reads one stream line by line."""

    def __init__(self, stream: Stream) -> None:
        self.rank = stream.rank
        self.lines: Sequence[Line] = stream.lines
        self.at = 0
        self.time: str | None = None

    def chains(self) -> list[Chain]:
        found: list[list[Raised]] = []
        link = ALONE
        while self.at < len(self.lines):
            text = self._text()
            self.time = self.lines[self.at].time or self.time
            link = _link(text) or link
            if HEADER in text:
                error = self._traceback(link)
            elif text == MEMBER:
                self.at += 1
                continue
            elif text.strip() == _TRACED and found:
                found[-1][-1] = self._traced(found[-1][-1])
                continue
            else:
                error = self._alone(link)
            if error is None:
                continue
            if link != ALONE and found:
                found[-1].append(error)
            else:
                found.append([error])
            link = ALONE
        return [Chain(raised=tuple(chain)) for chain in found]

    def _text(self, ahead: int = 0) -> str:
        return self.lines[self.at + ahead].text if self.at + ahead < len(self.lines) else ""

    def _traceback(self, link: str) -> Raised | None:
        """The exception whose traceback begins on this line."""
        time = self.time
        announced = bool(_ANNOUNCED.match(self._text().strip()))
        boxed = "─" in self._text()  # rich's box; what follows it is the exception
        self.at += 1
        frames: list[Frame] = []
        while self.at < len(self.lines):
            text = self._text()
            frame = frame_of(text)
            if frame is not None:
                self.at += 1
                frames.append(self._completed(frame, len(text) - len(text.lstrip())))
                continue
            if HEADER in text or _link(text):
                break
            pointed = with_arrow(frames[-1], text) if frames else None
            if pointed is not None:
                frames[-1] = pointed
                self.at += 1
                continue
            if boxed:
                boxed = not text.startswith("╰")
            elif self._is_end(text, announced, bool(frames)):
                return self._headline(
                    _HEADLINE.fullmatch(text.strip()) or _ANY_HEADLINE.fullmatch(text.strip()),
                    frames,
                    link,
                    time,
                )
            self.at += 1
        if not frames:
            return None
        # cut off before its last line: the frames still say where
        return Raised(
            type="Traceback", message="", frames=tuple(frames), link=link, rank=self.rank, time=time
        )

    def _is_end(self, text: str, announced: bool, framed: bool) -> bool:
        stripped = text.strip()
        if not stripped or not _ANY_HEADLINE.fullmatch(stripped):
            return False
        if _HEADLINE.fullmatch(stripped):
            return True
        # between IPython's frames stand lines of source, which may look like names; Python writes
        # none at the margin
        if announced or not framed or text[:1] in (" ", "\t"):
            return False
        # a word by itself right above the exception is the torn-off end of a line
        return ":" in stripped or not _HEADLINE.fullmatch(self._text(1).strip())

    def _completed(self, frame: Frame, indent: int) -> Frame:
        """`frame` with the line of source below it, as Python writes it."""
        text = self._text()
        deeper = len(text) - len(text.lstrip()) > indent
        unindented = indent == 0 and not ARROW.fullmatch(text.strip())
        if (
            not text.strip()
            or frame_of(text)
            or HEADER in text
            or _link(text)
            or not (deeper or unindented)
        ):
            return frame
        if not deeper and (_HEADLINE.fullmatch(text.strip()) or _GLOG.match(text)):
            return frame
        if ARROW.fullmatch(text.strip()) or re.match(r"\s*\d{1,7}\s", text):
            return frame  # numbered source of IPython or rich
        self.at += 1
        carets = self._text()
        if CARETS.fullmatch(carets):
            self.at += 1
            return with_code(frame, text, carets)
        return with_code(frame, text, None)

    def _headline(
        self, match: re.Match[str] | None, frames: list[Frame], link: str, time: str | None
    ) -> Raised | None:
        self.at += 1
        if match is None:
            return None
        message = [match["message"] or ""]
        blank = 0
        while self.at < len(self.lines) and len(message) < _MOST_MESSAGE_LINES:
            text = self._text()
            if (
                HEADER in text
                or _link(text)
                or frame_of(text)
                or _GLOG.match(text)
                or _WARNING.match(text)
            ):
                break
            if not text.strip():
                # a message may begin with an empty line; later one ends it
                blank += 1
                if any(message) or blank > 2:
                    break
            elif not frames and _HEADLINE.fullmatch(text) and not message[-1].endswith("raised:"):
                break
            else:
                message.append(text)
            self.at += 1
        return Raised(
            type=match["type"],
            message="\n".join(message).strip(),
            frames=tuple(frames),
            link=link,
            rank=self.rank,
            time=time,
        )

    def _alone(self, link: str) -> Raised | None:
        """An exception without traceback, or a warning, on this line."""
        text = self._text().strip()
        warning = _WARNING.fullmatch(text)
        if warning:
            self.at += 1
            frames = self._below_warning(
                Frame(file=warning["file"], line=int(warning["line"]), function=None)
            )
            return Raised(
                type=warning["type"],
                message=warning["message"],
                frames=frames,
                rank=self.rank,
                time=self.time,
            )
        native = _NATIVE.fullmatch(text)
        what = _WHAT.fullmatch(self._text(1)) if native else None
        if native and what:
            self.at += 2
            return Raised(
                type=native["type"],
                message=what["message"].strip(),
                frames=(),
                rank=self.rank,
                time=self.time,
            )
        match = _HEADLINE.fullmatch(text)
        if match and (match["message"] or "." in match["type"]):
            return self._headline(match, [], link, self.time)
        self.at += 1
        return None

    def _traced(self, raised: Raised) -> Raised:
        """`raised` with the frames that stand under this line, which are nearer to its cause than
        its own."""
        self.at += 1
        frames: list[Frame] = []
        while (frame := frame_of(self._text())) is not None:
            indent = len(self._text()) - len(self._text().lstrip())
            self.at += 1
            frames.append(self._completed(frame, indent))
        return replace(raised, frames=(*raised.frames, *frames))

    def _below_warning(self, where: Frame) -> tuple[Frame, ...]:
        """Where a warning was given; of anomaly mode's, the forward call it tells of, too."""
        frames = [where]
        while (frame := frame_of(self._text())) is not None:
            indent = len(self._text()) - len(self._text().lstrip())
            self.at += 1
            frames.append(self._completed(frame, indent))
        if len(frames) == 1 and self._text()[:2] == "  ":
            frames = [with_code(where, self._text(), None)]
            self.at += 1
        return tuple(frames)


def _link(text: str) -> str:
    return next((link for link, pattern in _LINKS if pattern.match(text)), ALONE)
