"""A session that runs a script up to the first step of its training, and hands over that step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from nanodoc.loop.script_engine import ScriptEngine
from nanodoc.script.loops import Loops
from nanodoc.script.outside import Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.search import Candidate
from nanodoc.script.session import ScriptSession
from nanodoc.script.states import ScriptEnded, State
from nanodoc.script.trained import Trained


class ReplaySession(ScriptSession):
    """`examine` gets the first iteration of the training's loop, before its optimizer has stepped;
    the script is ended then. What went wrong in it is in `trouble`."""

    def __init__(
        self, loops: Loops, outside: Outside, examine: Callable[[Candidate, RecoveredStep], None]
    ) -> None:
        super().__init__(loops, outside, _no_engine, lambda engine, outcome: ScriptEnded())
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

    def _wants_first(self) -> bool:
        return True

    def _begin_engine(self, error: BaseException | None = None) -> None:
        first = self._first
        assert first is not None
        self.state, self.reached = State.OVER, True
        self._recovered.begin(first.start)
        self._examine(first, self._recovered)
        raise ScriptEnded


def _no_engine(trained: Trained, step: RecoveredStep) -> ScriptEngine:
    raise NotImplementedError
