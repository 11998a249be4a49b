"""What was registered behind the making of an optimizer, where both were asked for, and which
functions made the training."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
from typing import Any

from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.made_in import Scopes, making_scopes
from nanodoc.trace.spans import Place

_Stack = tuple[Place, ...]
"""The user's frames, the outermost first."""
_Key = tuple[int, str]
"""The identity of a module, and the name of its parameter."""


class KeptAlive(list[Any]):
    """Objects that only nanodoc holds, maybe, so that their identities stay theirs."""


class BuildOrder:
    """Nothing is kept of parameters until an optimizer has been made."""

    def __init__(self) -> None:
        self._optimizers: dict[int, _Stack] = {}
        self._later: dict[_Key, tuple[tuple[int, ...], _Stack]] = {}
        self._makers: dict[CodeType, dict[str, Any]] = {}

    def made_optimizer(self, number: int) -> None:
        frame: FrameType | None = sys._getframe(1)
        self._optimizers[number] = _user_stack(frame)
        while frame is not None:
            if frame_kind(frame.f_code.co_filename) == USER:
                self._makers[frame.f_code] = frame.f_globals
            frame = frame.f_back

    def makers(self) -> Scopes:
        """The user's functions that asked for an optimizer, and what those call by a name. Their
        globals are let go: a script's live no longer than under `python`."""
        found = making_scopes(self._makers.items())
        self._makers = {}
        return found

    def registered(self, key: _Key) -> None:
        if self._optimizers and key not in self._later:
            self._later[key] = tuple(self._optimizers), _user_stack(sys._getframe(1))

    def behind(self, owned: Mapping[str, _Key], optimizers: Iterable[int]) -> dict[str, Place]:
        """Of parameters that none of `optimizers` could have been given: where the last of these
        was asked for, in the function that asked for the parameter, too."""
        found = {name: self._before(key, optimizers) for name, key in owned.items()}
        return {name: place for name, place in found.items() if place is not None}

    def _before(self, key: _Key, optimizers: Iterable[int]) -> Place | None:
        before, registered = self._later.get(key, ((), ()))
        own = [number for number in optimizers if number in self._optimizers]
        if not own or not set(own) <= set(before):
            return None
        for made, later in zip(self._optimizers[own[-1]], registered, strict=False):
            if made[0] is not later[0]:
                return None
            if made[1] != later[1]:
                return made
        return None


def _user_stack(frame: FrameType | None) -> _Stack:
    found = []
    while frame is not None:
        if frame_kind(frame.f_code.co_filename) == USER:
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(reversed(found))
