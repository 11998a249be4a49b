"""The thread that runs the checks of a rank. It may hang for good: the main thread watches it and
never waits for it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from nanodoc.net.checks import BEFORE_SPEED, LAST, Check, Place
from nanodoc.net.record import NO_ANSWER, RAISED, WRONG, CheckDone, Failure, RankFacts, RankRecord
from nanodoc.net.speed import SMALL, measure

_LONGEST_ERROR = 300
# gloo's own files, which help nobody here
_PLACE_IN_SOURCE = re.compile(r"\[(?:enforce fail at )?/[^\]]*\] *")


class Worker:
    """Runs the checks in a thread of its own and keeps the rank's record, which the main thread
    publishes."""

    def __init__(self, facts: RankFacts, publish: Callable[[RankRecord], None]) -> None:
        self._record, self._publish = RankRecord(facts=facts), publish
        self._lock = threading.Lock()
        self._began = 0.0
        self._met = 0.0

    @property
    def record(self) -> RankRecord:
        return self._record

    def start(self, place: Place, sizes: tuple[int, ...]) -> None:
        threading.Thread(target=self._run, args=(place, sizes), daemon=True).start()

    def give_up(self, timeout: float) -> None:
        """Notes that the current check has taken longer than `timeout`, if it has."""
        with self._lock:
            record = self._record
            if (
                record.current is None
                or record.settled
                or time.monotonic() - self._began <= timeout
            ):
                return
            failure = Failure(
                check=record.current,
                kind=NO_ANSWER,
                text=f"no answer within {timeout:g} s",
                entered=record.entered,
            )
            self._record = replace(record, failures=(*record.failures, failure), stopped=True)

    def _run(self, place: Place, sizes: tuple[int, ...]) -> None:
        self._met = time.monotonic()
        for check in (*BEFORE_SPEED, *self._speed_checks(place, sizes), LAST):
            if not self._through(check, place):
                return
        self._change(lambda record: replace(record, current=None, finished=True))

    def _through(self, check: Check, place: Place) -> bool:
        """Runs one check; False if no further one can be run."""
        self._began = time.monotonic()
        self._change(lambda record: replace(record, current=check.name, entered=False))
        # now: a process that is killed in the check can't say where it was any more
        self._publish(self._record)
        for drill in place.drills:
            drill.before(check.name.split()[0])
        start = time.monotonic()
        self._change(lambda record: replace(record, entered=True))
        try:
            wrong = check.run(place)
            place.synchronize()
        except Exception as error:
            # whatever torch, gloo, NCCL or the driver raise: it is the finding
            said = (
                f"{type(error).__name__}: {_PLACE_IN_SOURCE.sub('', ' '.join(str(error).split()))}"[
                    :_LONGEST_ERROR
                ]
            )
            self._change(
                lambda record: _failed(
                    record, Failure(check=check.name, kind=RAISED, text=said), stopped=True
                )
            )
            return False
        end = time.monotonic()
        late = start - self._met if check.together else None
        self._met = end if check.together else self._met
        done = CheckDone(name=check.name, seconds=end - start, late=late)
        self._change(lambda record: replace(record, done=(*record.done, done)))
        if wrong:
            failure = Failure(check=check.name, kind=WRONG, text=wrong)
            self._change(lambda record: _failed(record, failure, stopped=False))
        return not self._record.stopped

    def _speed_checks(self, place: Place, sizes: tuple[int, ...]) -> tuple[Check, ...]:
        def checked(size: int) -> Callable[[Place], None]:
            def run(place: Place) -> None:
                before = next(
                    (speed for speed in reversed(self._record.speeds) if speed.size > SMALL), None
                )
                speed = measure(place, size, before)
                self._change(lambda record: replace(record, speeds=(*record.speeds, speed)))

            return run

        large = [Check(name=f"bandwidth {size / 2**20:g} MiB", run=checked(size)) for size in sizes]
        return (Check(name="latency", run=checked(SMALL)), *large)

    def _change(self, change: Callable[[RankRecord], RankRecord]) -> None:
        with self._lock:
            # once given up, the record stays as it was reported, even if the answer comes after all
            if not self._record.stopped:
                self._record = change(self._record)


def _failed(record: RankRecord, failure: Failure, *, stopped: bool) -> RankRecord:
    return replace(record, failures=(*record.failures, failure), stopped=stopped)
