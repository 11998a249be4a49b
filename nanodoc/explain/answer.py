"""The answer to a paste: which of its exceptions is the root, what is known about it, and the
user's own line."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from nanodoc.explain.frames import Frame
from nanodoc.explain.knowledge import Explanation, explained
from nanodoc.explain.lines import HEADER
from nanodoc.explain.paste import DURING, OF_GROUP, ORIGIN, Chain, Paste, Raised, parse
from nanodoc.explain.wrapped import on_one_line, unwrapped

# Lookups that fail and are caught are often only why a fallback was taken; what the fallback raised
# is meant.
_INCIDENTAL = {
    "KeyError",
    "AttributeError",
    "ImportError",
    "ModuleNotFoundError",
    "StopIteration",
    "Empty",
    "FileNotFoundError",
}
_LARGEST_SOURCE = 2**20
# Anomaly mode warns with the traceback of the forward call whose derivative failed: that line is
# meant, not the call of backward().
_FORWARD_CALL = "Traceback of forward call that caused the error"
_OF_BACKWARD = ("nan-in-backward", "in-place-overwrite", "backward-twice")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What `nanodoc explain` says to a paste."""

    raised: Raised | None
    """The exception that is explained; None where the text holds none."""
    explanation: Explanation | None
    """None where the knowledge base has no entry for it."""
    frame: Frame | None
    others: tuple[str, ...]
    """The other exceptions' first lines."""
    text: str
    """The paste without colours and control characters."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    chain: Chain
    raised: Raised
    explanation: Explanation | None

    @property
    def standing(self) -> int:
        """0 a failure of its own, 1 the effect of another one, 2 a warning."""
        if self.raised.is_warning:
            return 2
        return int(self.explanation is not None and self.explanation.effect)


def answer(text: str) -> Answer:
    """The root of what a text tells, explained; where nothing is known, as if its lines had been
    broken on the way."""
    paste = parse(text)
    found = _answered(paste)
    if (
        found.explanation is None
        or found.explanation.vague
        or (found.frame is None and HEADER in paste.text)
    ):
        for joined in unwrapped(paste.text):
            again = _answered(parse(joined))
            if _tells_more(again, found):
                return replace(again, frame=again.frame or found.frame)
    return found


def _tells_more(again: Answer, found: Answer) -> bool:
    if again.explanation is None or (found.explanation is not None and again.explanation.vague):
        return False
    if found.explanation is not None and not found.explanation.vague:
        return again.explanation.id == found.explanation.id and again.frame is not None
    return found.raised is None or (
        not again.explanation.effect
        and again.raised is not None
        and again.raised.is_warning <= found.raised.is_warning
    )


def _answered(paste: Paste) -> Answer:
    choices = sorted(
        (_chosen(chain, paste) for chain in paste.chains), key=lambda choice: _order(choice, paste)
    )
    if not choices or choices[0].standing:
        # no exception, or only the effects of one: a line of the log may tell more, such as the
        # system's word that it killed a process
        told = explained(paste.text, effects=False)
        if (
            told is not None
            and choices
            and choices[0].raised.headline.partition("\n")[0] in told.matched
        ):
            told = None  # the same message, seen without its frames
        if told is None and not choices:
            told = _known(paste.text)
        if told is not None and (
            not choices
            or choices[0].explanation is None
            or (choices[0].standing == 1 and not told.effect)
        ):
            return _answer(paste, None, told, choices)
    if not choices:
        return _answer(paste, None, None, choices)
    return _answer(paste, choices[0], choices[0].explanation, choices)


def _answer(
    paste: Paste, choice: _Choice | None, explanation: Explanation | None, choices: list[_Choice]
) -> Answer:
    where = choice or next(iter(choices), None)
    frame = _users_frame(where.chain, where.raised) if where else None
    if explanation is not None and explanation.id.startswith(_OF_BACKWARD):
        forward = next(
            (chain for chain in paste.chains if _FORWARD_CALL in chain.raised[0].message), None
        )
        frame = (_users_frame(forward, forward.raised[0]) if forward else None) or frame
    return Answer(
        raised=choice.raised if choice else None,
        explanation=explanation,
        frame=_with_source(frame) if frame else None,
        others=_others(
            [other for other in choices if other.standing < 2],
            choice.raised if choice else None,
        ),
        text=paste.text,
    )


def _chosen(chain: Chain, paste: Paste) -> _Choice:
    """The exception of a chain to explain: the nearest to its root that something is known about;
    effects where there is nothing else."""
    ordered = _from_the_root(chain)
    known = [(raised, _known(raised.headline, paste.text)) for raised in ordered]
    for raised, explanation in sorted(
        known, key=lambda pair: not (pair[1] is not None and pair[1].outer)
    ):
        if explanation is not None and not explanation.effect:
            return _Choice(chain=chain, raised=raised, explanation=explanation)
    for raised, explanation in known:
        if explanation is not None:
            return _Choice(chain=chain, raised=raised, explanation=explanation)
    return _Choice(chain=chain, raised=ordered[0], explanation=None)


def _known(message: str, context: str = "") -> Explanation | None:
    """What is known about a message, or about its lines as one."""
    vague = None
    for text in (message, *on_one_line(message)):
        told = explained(text, context=context)
        if told is not None and not told.vague:
            return told
        vague = vague or told
    return vague


def _from_the_root(chain: Chain) -> list[Raised]:
    """The exceptions of a chain, the likeliest root first."""
    raised = list(chain.raised)
    first = raised[0]
    # the traceback of a worker or process follows the exception that reports it, and so do the
    # members of a group
    inner = [i for i, error in enumerate(raised) if error.link == ORIGIN][-1:] or [
        i for i, error in enumerate(raised) if error.link == OF_GROUP
    ][:1]
    if inner:
        (start,) = inner
        return [*raised[start:], *reversed(raised[:start])]
    incidental = [
        error
        for error, after in pairwise(raised)
        if after.link == DURING and error.type.rpartition(".")[2] in _INCIDENTAL
    ]
    ordered = [error for error in raised if error not in incidental] + incidental
    return ordered if ordered else [first]


def _order(choice: _Choice, paste: Paste) -> tuple[int, bool, str]:
    """Failures before effects before warnings; then the rank that failed first, then by time.
    `sorted` keeps the order of the paste."""
    raised = choice.raised
    return (
        choice.standing,
        paste.first_failed is not None and raised.rank != paste.first_failed,
        raised.time or "",
    )


def _users_frame(chain: Chain, raised: Raised) -> Frame | None:
    """The innermost frame outside of installed packages: of this exception, else of those it is
    chained with."""
    for error in (raised, *_from_the_root(chain)):
        for frame in reversed(error.frames):
            if frame.is_users:
                return frame
    return None


def _others(choices: Iterable[_Choice], told: Raised | None) -> tuple[str, ...]:
    """First lines of the exceptions that are not explained, each once."""
    said = told.headline if told else ""
    lines = []
    for choice in choices:
        for error in choice.chain.raised:
            line = error.headline.partition("\n")[0].strip()
            if error.headline != said and line and line not in lines and error.type != "Traceback":
                lines.append(line)
    return tuple(lines)


def _with_source(frame: Frame) -> Frame:
    """`frame` with its line of source, where the paste has none and the file it names is a Python
    file here."""
    if frame.code is not None or frame.line is None or not frame.file.endswith((".py", ".pyw")):
        return frame
    try:
        path = Path(frame.file).expanduser()
        info = path.stat()
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LARGEST_SOURCE:
            return frame
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError, RuntimeError):
        return frame
    line = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
    return replace(frame, code=line) if line else frame
