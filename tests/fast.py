"""`pytest --fast`: the tests that start no process, are not marked `slow` and took no longer than
0.1 s when that was measured last.

Which tests start one is read from their code, so nobody keeps a list: a test, its fixtures or what
they call in the tests and the benchmarks names subprocess, multiprocessing, torch.distributed or a
loader's workers. What that overlooks is caught when it runs: with `--fast`, starting a process
fails a test. The process in which nanodoc itself draws samples again is none of a test's.

`pytest --measure` writes down which tests take long (tests/slow_tests.txt). One that is missing
there is run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

_MODULES = frozenset(
    {"subprocess", "multiprocessing", "torch.multiprocessing", "torch.distributed"}
)
_NAMES = frozenset({"subprocess", "multiprocessing", "fork", "num_workers"})
_READ = frozenset({"tests", "benchmarks"})  # not nanodoc: what it names, it seldom does
_OF_NANODOC = ("item_look.py", "worker_draws.py")
_LONG = 0.1  # seconds
_SLOW_TESTS = Path(__file__).parent / "slow_tests.txt"
_EVENTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


class Fast:
    """The plugin: leaves out tests, and fails those that should have been left out."""

    def __init__(self) -> None:
        self.running = False
        self._started: str | None = None
        sys.addaudithook(self._audit)  # can't be taken back: a plugin lives as long as the process

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self.running and event in _EVENTS:
            if sys._getframe(1).f_code.co_filename.endswith(_OF_NANODOC):
                return
            self._started = event
            raise RuntimeError(f"a test started a process ({event}) with --fast")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        seen: dict[int, bool] = {}
        long = set(_SLOW_TESTS.read_text(encoding="utf-8").splitlines())
        kept, left_out = [], []
        for item in items:
            slow = item.get_closest_marker("slow") is not None or item.nodeid in long
            (left_out if slow or starts_processes(item, seen) else kept).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._started, self.running = None, True
        try:
            return (yield)
        finally:
            self.running = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Fails the test also where the error was caught: that is what much of nanodoc is for."""
        try:
            return (yield)
        finally:
            if self._started is not None:
                pytest.fail(
                    f"it started a process ({self._started}); mark it `@pytest.mark.slow`, and "
                    "--fast will leave it out",
                    pytrace=False,
                )


class Measure:
    """The plugin that writes down the tests that take long. Those of files that were not run stay
    as they are."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        files = {name.partition("::")[0] for name in self._seconds}
        before = _SLOW_TESTS.read_text(encoding="utf-8").splitlines()
        slow = {name for name in before if name.partition("::")[0] not in files}
        slow |= {name for name, seconds in self._seconds.items() if seconds > _LONG}
        _SLOW_TESTS.write_text("".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")


def starts_processes(item: pytest.Item, seen: dict[int, bool]) -> bool:
    """Whether the code of a test, of its fixtures or of its parameters says so; `seen` spares
    reading the same function again."""
    if not isinstance(item, pytest.Function):
        return False
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    found: list[Any] = [item.function, *(one.func for several in fixtures for one in several)]
    if hasattr(item, "callspec"):
        found += item.callspec.params.values()
    return any(reaches(one, seen) for one in found)


def reaches(value: Any, seen: dict[int, bool]) -> bool:
    """Whether a function, or what it calls in the folders that are read, names a process."""
    if isinstance(value, ModuleType):
        return value.__name__ in _MODULES
    if isinstance(value, MethodType):
        value = value.__func__
    if id(value) not in seen:
        seen[id(value)] = False  # also while it is being read: functions may call each other
        seen[id(value)] = any(_reached(value, seen))
    return seen[id(value)]


def _reached(value: Any, seen: dict[int, bool]) -> Iterator[bool]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        yield from (reaches(one, seen) for one in value if callable(one))
    if (getattr(value, "__module__", None) or "").partition(".")[0] not in _READ:
        yield from ()
    elif isinstance(value, type):
        yield from (reaches(one, seen) for one in vars(value).values() if callable(one))
    elif isinstance(value, FunctionType):
        for code in _codes(value.__code__):
            keywords = {
                one for names in code.co_consts if isinstance(names, tuple) for one in names
            }
            yield not _NAMES.isdisjoint({*code.co_names, *keywords})
            known = (value.__globals__.get(name) for name in code.co_names)
            yield from (reaches(one, seen) for one in known)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)
