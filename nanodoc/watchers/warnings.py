"""Warnings that torch and the training code give during a run, with the user's line. They are said
as ever; only noted besides.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nanodoc.facts.loop import WarningFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.taps import SHOW_WARNING, listening
from nanodoc.trace.spans import calling_places, resolved

_MOST = 50
_LENGTH = 400  # characters of a message


class WarningWatch:
    """`watching()` around the run; `facts()` afterwards."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, Any], WarningFacts] = {}
        self.step = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        def showing(original: Callable[..., Any]) -> Callable[..., Any]:
            def show(message: Any, category: Any, *rest: Any, **named: Any) -> None:
                # a message may be any object; what it does must not reach the user's run
                with contextlib.suppress(Exception):
                    self._note(message, category)
                original(message, category, *rest, **named)

            return show

        with listening((SHOW_WARNING, showing)):
            yield

    def _note(self, message: Any, category: Any) -> None:
        if len(self._seen) >= _MOST:
            return
        own, caller = calling_places(3)
        place = caller or own
        where: SourceSpan | None = resolved(place)
        text = " ".join(str(message).split())[:_LENGTH]
        key = (getattr(category, "__name__", ""), text[:80], where)
        known = self._seen.get(key)
        count = known.count + 1 if known is not None else 1
        first = known.step if known is not None else self.step
        self._seen[key] = WarningFacts(
            category=key[0], message=text, location=where, step=first, count=count
        )

    def facts(self) -> tuple[WarningFacts, ...]:
        return tuple(self._seen.values())
