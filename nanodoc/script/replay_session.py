"""A session that runs a script up to the first step of its training, and hands over that step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from nanodoc.script.loops import Loop, Loops
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.script.search_session import SearchSession
from nanodoc.script.states import ScriptEnded, State


class ReplaySession(SearchSession):
    """`examine` gets the first iteration of the training's loop, before its optimizer has stepped;
    the script is ended then. What went wrong in it is in `trouble`."""

    wants_first = True

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        examine: Callable[[Candidate, RecoveredStep], None],
        wanted: Callable[[Loop], bool] | None = None,
    ) -> None:
        super().__init__(loops, outside, wanted)
        self._examine = examine
        self.trouble: Exception | None = None
        self.reached = False

    @contextlib.contextmanager
    def _ours(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        except Exception as error:
            self.trouble = error
            self.state = State.OVER
            raise ScriptEnded from error
        finally:
            self._busy = False

    def _first_complete(self) -> None:
        first = self._first
        assert first is not None
        self.state, self.reached = State.OVER, True
        self._recovered.begin(first.start)
        self._examine(first, self._recovered)
        raise ScriptEnded
