"""One scheduler for everything that is run again, or looked at, when the steps of a run are over.

A look says what it costs and how likely it is to tell something. The likeliest for its cost comes
first, within its stage. All of them share one budget (`--budget`), and what no time was left for is
told in the report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum

from nanodoc.looks.own_errors import costs_one_look, own_error

DEFAULT_BUDGET = 60.0  # seconds
NO_TIME = "no time was left"
_LEAST_COST = 1e-3  # seconds; two looks that cost less than this cost the same

Clock = Callable[[], float]


class OutOfTime(BaseException):
    """Leaves a step that is run again, through code that catches `Exception`."""


class Stage(IntEnum):
    """A look of a later stage may use what those of the earlier ones have found."""

    END = 0
    """How the run ended: this decides whether its last step is sick."""
    LAST_STEPS = 1
    """The last steps, and the first one, run again."""
    CLOSER = 2
    """What the calls of the last step give reason to ask."""
    SUMMARY = 3
    """Statistics over the run, which name the layers of the last step."""
    DATA = 4
    """The data set, and where bad values of a batch were made."""
    EXPERIMENTS = 5
    """The step, or the steps before it, with one thing changed."""
    COURSE = 6
    """Whether the run would have done better from another start, or with smaller steps."""
    LARGER_STEPS = 7
    """Whether it would have learnt with larger steps, where smaller ones are no answer."""
    LINES = 8
    """The line of what the experiments have shown to matter."""
    FIXES = 9
    """What the findings propose."""


class Place:
    """The time that one look has. The look asks `allows` before each of its pieces."""

    def __init__(self, looks: Looks, look: Look | None = None) -> None:
        self._looks = looks
        self.name = look.name if look is not None else ""
        self.group = look.group if look is not None else ""
        own, now = looks.deadline, looks.clock()
        if look is not None:
            own = max(min(own, now + look.most, now + look.share * looks.left), now + look.least)
        self.deadline = own
        """As the clock counts (`time.monotonic`)."""
        self.longest = 0.0
        """Seconds that the longest piece so far took."""

    @property
    def left(self) -> float:
        """Seconds until the deadline, 0 when it is over."""
        return max(self.deadline - self._looks.clock(), 0.0)

    @property
    def one_run(self) -> float:
        """Seconds that one run of a step is thought to take."""
        return self._looks.step_seconds

    def allows(self, seconds: float | None = None, what: str = "") -> bool:
        """Whether a piece that takes so long still fits; by default as long as the longest one so
        far of a generator. If the budget has no room for it, the report will name `what`, or else
        the look."""
        needed = self.longest if seconds is None else seconds
        if self.left and needed <= self.left:
            return True
        if needed >= self._looks.left:  # and not only more than its own part of the budget
            self.leave(what)
        return False

    def leave(self, what: str = "") -> None:
        """Notes that no time was left for `what`, or else for the rest of the look."""
        if self.group:
            self._looks.leave(self.group, what or self.name)

    def part(self, share: float) -> float:
        """The moment when this share of the look's own time is over."""
        return self._looks.clock() + share * self.left


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """One thing that is looked at when the run is over."""

    name: str
    """What is looked at, as the report says it behind "no time was left for"."""
    group: str
    """The group of "checked" and "not checked" that it belongs to."""
    work: Callable[[Place], Iterator[object] | None]
    """Looks. As a generator it yields between two pieces, and is closed where the next one does not
    fit; a plain function asks `Place.allows` between pieces itself."""
    stage: Stage
    likely: float = 0.1
    """How likely it is to tell something, from 0 to 1."""
    runs: float = 1.0
    """How many runs of one step it takes in all; a traced one counts as five. 0 for one that only
    sums up what is known, and for one whose pieces ask for their own time."""
    first: float | None = None
    """How many of them its first piece takes; by default all."""
    seconds: float = 0.0
    """What it takes besides."""
    most: float = math.inf
    """Seconds that it may take, however much time is left."""
    share: float = 1.0
    """Of the time that is left when it begins."""
    due: bool = False
    """It begins even where no time is left: without it the report would be wrong or empty."""
    least: float = 0.0
    """Seconds that one that is due may take even then."""
    asks: Callable[[], bool] = lambda: True
    """Whether there is anything to look at. Asked when its turn comes; it takes no time."""
    needs: Callable[[], str] = lambda: ""
    """Why it can't be done here (a step that does not reproduce, no copy of earlier weights), as
    the report says it; "" where it can."""
    rest: str = "the remaining checks"
    """What the report calls this look and those after it, where the user interrupts it."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A look that was taken."""

    look: Look
    estimate: float
    """Seconds that it was thought to take."""
    seconds: float
    """Seconds that it took."""


class Looks:
    """All looks of one run. They are registered with `add`, and taken by `run`, stage by stage.

    `seconds`: the budget, which begins with `begin`. `spent`: what another process has used of it.
    """

    def __init__(
        self, seconds: float = DEFAULT_BUDGET, *, spent: float = 0.0, clock: Clock = time.monotonic
    ) -> None:
        self.seconds = seconds
        self.clock = clock
        self.step_seconds = 0.0
        """What one step of the run took."""
        self.notes: list[tuple[str, str]] = []
        """(what was not checked, why); without what no time was left for."""
        self.interrupted = False
        """The user has ended a look: no other one is taken."""
        self.taken: list[Taken] = []
        self._spent = spent
        self._began: float | None = None
        self._added: list[Look] = []
        self._waiting: list[Look] = []
        self._left_out: dict[str, list[str]] = {}
        self._now: Place | None = None

    def begin(self, step_seconds: float = 0.0) -> None:
        """The steps are over, of which each took `step_seconds`. Only the first call counts."""
        if self._began is None:
            self._began, self.step_seconds = self.clock(), step_seconds

    def going_on(self) -> None:
        """They were not over after all: the budget is whole again."""
        self._began = None

    @property
    def deadline(self) -> float:
        """When the budget is used up, as the clock counts."""
        self.begin()
        assert self._began is not None
        return self._began + self.seconds - self._spent

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return max(self.deadline - self.clock(), 0.0)

    @property
    def used(self) -> float:
        """Seconds since the budget began."""
        return 0.0 if self._began is None else self.clock() - self._began

    @property
    def place(self) -> Place:
        """That of the look that is being taken; outside of any, all that is left."""
        return self._now or Place(self)

    def add(self, look: Look) -> None:
        """Registers a look, to be taken when its stage is run."""
        self._added.append(look)
        self._waiting.append(look)

    def run(
        self,
        until: Stage = Stage.FIXES,
        *,
        passes_over: Callable[[BaseException], bool] = costs_one_look,
    ) -> None:
        """Takes the looks of all stages up to `until`: first by stage, then by how likely one is to
        tell something for what it costs. An error that `passes_over` admits costs its look only."""
        self.begin()
        while (look := self._next(until)) is not None:
            if self.interrupted:
                continue
            try:
                with self.guarded(look.group, passes_over, look.name):
                    self._take(look)
            except KeyboardInterrupt:
                self.interrupt(look.rest)
            except OutOfTime:
                self.leave(look.group, look.name)
            finally:
                self._now = None

    @contextmanager
    def guarded(
        self,
        group: str,
        passes_over: Callable[[BaseException], bool] = costs_one_look,
        name: str = "",
    ) -> Iterator[None]:
        """Around a look, or what makes some ready: an error that `passes_over` admits is noted as
        one of the `group`, with the look's `name`."""
        try:
            yield
        except Exception as error:
            if not passes_over(error):
                raise
            where = f" ({name})" if name not in ("", group) else ""
            self.notes.append((group, f"{own_error(error)}{where}"))

    def interrupt(self, rest: str = "the remaining checks") -> None:
        """The user has interrupted a look: no other one is taken, and the report says that of the
        `rest`, once."""
        if not self.interrupted:
            self.interrupted = True
            self.notes.append((rest, "interrupted"))

    def leave(self, group: str, what: str) -> None:
        """Notes that no time was left for `what`, which belongs to `group`."""
        names = self._left_out.setdefault(group, [])
        if what not in names:
            names.append(what)

    def asked(self) -> list[str]:
        """What was looked at to its end, in words; without what is looked at in every run. In the
        order of stages and of `add`, which the clock has no part in, unlike that of the looks."""
        left = {name for names in self._left_out.values() for name in names}
        taken = {id(taken.look) for taken in self.taken if taken.look.stage < Stage.FIXES}
        looks = sorted(self._added, key=lambda look: look.stage)
        names = [look.name for look in looks if id(look) in taken and not look.due]
        return [name for name in dict.fromkeys(names) if name not in left]

    def not_checked(self) -> list[tuple[str, str]]:
        """(what, why) of everything that was not looked at. What no time was left for is told by
        group, and by name where something else of the group was looked at."""
        begun = {taken.look.group for taken in self.taken if taken.look.runs or taken.look.seconds}
        budget = f"(--budget {self.seconds:g}s)"
        return [
            *self.notes,
            *(
                (group, f"{NO_TIME} for {', '.join(names)} {budget}")
                if group in begun
                else (group, f"{NO_TIME} {budget}")
                for group, names in self._left_out.items()
            ),
        ]

    def estimate(self, look: Look) -> float:
        """Seconds that it will take."""
        return look.seconds + look.runs * self.step_seconds

    def _next(self, until: Stage) -> Look | None:
        """Takes the next one off those that wait."""
        due = [look for look in self._waiting if look.stage <= until]
        if not due:
            return None

        def turn(look: Look) -> tuple[int, float]:
            return look.stage, -look.likely / max(self.estimate(look), _LEAST_COST)

        first = min(due, key=turn)
        self._waiting.remove(first)
        return first

    def _take(self, look: Look) -> None:
        if not look.asks():
            return
        if why := look.needs():
            self.notes.append((look.group, why))
            return
        place, estimate = Place(self, look), self.estimate(look)
        if look.first is not None:
            first = look.seconds + look.first * self.step_seconds
        else:
            first = estimate
        if not look.due and not place.allows(first):
            return
        self._now, began = place, self.clock()
        try:
            pieces = look.work(place)
            if pieces is not None:
                self._take_pieces(pieces, place)
        finally:
            self.taken.append(Taken(look, estimate, self.clock() - began))

    def _take_pieces(self, pieces: Iterator[object], place: Place) -> None:
        at = self.clock()
        for _ in pieces:
            now = self.clock()
            place.longest = max(place.longest, now - at)
            if not place.allows():
                break
            at = now
        if (close := getattr(pieces, "close", None)) is not None:
            close()
