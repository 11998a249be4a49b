"""Processes that a script starts to train in (`torch.multiprocessing.spawn`, `Process(target=…)`):
each is watched as a training of its own, and leaves its report in a folder for the script's."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch.multiprocessing.spawn import ProcessException

from nanodoc.config import Config, artifact_folder
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import ENDED, RankOutcome
from nanodoc.heartbeat.trail import NoTrail, leave
from nanodoc.instrument.torch_private import spawned
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.pipeline.ranks import outcome_of_rank
from nanodoc.pipeline.script import ScriptRun
from nanodoc.pipeline.shown_errors import without_ours
from nanodoc.progress import Progress
from nanodoc.report.merge import merge
from nanodoc.report.report import Report
from nanodoc.report.trainings import of_all_trainings
from nanodoc.rules.catalogue import superseded
from nanodoc.script.launcher import OURS, mark_below, run_marked
from nanodoc.script.loops import Loops
from nanodoc.script.states import ScriptEnded
from nanodoc.supervise.job import Started
from nanodoc.supervise.wire import WireError, opened, packed
from nanodoc.trace.files import USER, frame_kind

_SETTINGS = "settings"
_NO_REPORT = "it left no report: it ended before its training was over"
_getpid = os.getpid  # as it is before the script
_NUMBER = "_nanodoc_number"  # of a process that is watched


class Processes:
    """Those of one script; a context manager around its run."""

    def __init__(self, entrypoint: str, config: Config, root: str, loops: Loops) -> None:
        """`root`: modules below it are the script's own."""
        self._started = Started(
            entrypoint=entrypoint,
            config=replace(config, snapshot_dir=str(artifact_folder(config).absolute())),
            root=root,
        )
        self._loops = loops
        self._count = 0
        self._pids: set[int | None] = set()
        self._process = os.getpid()
        self._folder: Path | None = None
        self._around = contextlib.ExitStack()

    def __enter__(self) -> Processes:
        self._around.enter_context(_started_through(self._start))
        return self

    def __exit__(self, *exc: object) -> None:
        self._around.close()

    def ending(self, program: Callable[[], Any]) -> Callable[[], Any]:
        """The program, which ends quietly where it is told of a process that the watching ended."""

        def run() -> None:
            try:
                program()
            except ProcessException:
                if any(kind == "ended" for kind, _ in self._left().values()):
                    raise ScriptEnded from None
                raise
            if self._count:  # as Python does when it ends
                for process in multiprocessing.active_children():
                    if not process.daemon and process.pid in self._pids:
                        process.join()

        return run

    def told(self, own: Report) -> Report:
        """The script's report, with those of its processes."""
        if not self._count:
            return own
        reports = {number: report for number, (_, report) in self._left().items()}
        lost = tuple(
            (f"process {number}", _NO_REPORT)
            for number in range(1, self._count + 1)
            if number not in reports
        )
        # a process that never trained did something else, and how it ended is the script's affair
        reports = {n: report for n, report in reports.items() if report.vitals.steps}
        if reports:
            own_training = [own] if own.vitals.steps else []
            ranks = _of_ranks(list(reports.values()), self._count, self._started.config)
            merged = ranks or of_all_trainings(
                [*own_training, *(_named(report, n) for n, report in reports.items())]
            )
            own = replace(
                merged,
                script_status=own.script_status,
                interrupted=own.interrupted,
                run=replace(merged.run, entrypoint=own.run.entrypoint, config=own.run.config),
            )
        # of a group, the head of the report tells how each rank ended
        return replace(own, not_checked=(*own.not_checked, *(() if own.ranks else lost)))

    def _left(self) -> dict[int, tuple[str, Report]]:
        """What each has left: ("ended" where the watching ended it, its report)."""
        found: dict[int, tuple[str, Report]] = {}
        folder = self._folder
        for number in range(1, self._count + 1) if folder is not None else ():
            with contextlib.suppress(OSError, WireError):
                assert folder is not None
                found[number] = opened((folder / str(number)).read_bytes()[4:])
        return found

    def _start(self, process: BaseProcess, start: Callable[..., None]) -> None:
        """The script starts a process."""
        if _getpid() != self._process or not _may_train(process):
            return start(process)
        if self._folder is None:
            self._folder = Path(
                self._around.enter_context(tempfile.TemporaryDirectory(prefix="nanodoc-"))
            )
            (self._folder / _SETTINGS).write_bytes(packed("started", self._started))
        self._count += 1
        vars(process)[_NUMBER] = self._count
        with _spawned_by_us(self._folder), _forked_by_us(self._folder, self._started, self._loops):
            start(process)
        self._pids.add(process.pid)


def spawn_main(folder: str, **handles: Any) -> None:
    """In the place of `multiprocessing.spawn.spawn_main`: the modules of the script are marked
    before they are imported."""
    try:
        started: Started = opened((Path(folder) / _SETTINGS).read_bytes()[4:])[1]
    except OSError:  # the script is over: nobody would read the report
        return multiprocessing.spawn.spawn_main(**handles)
    loops = Loops()
    mark_below(started.root, loops)
    spawn: Any = multiprocessing.spawn
    spawn.runpy = SimpleNamespace(
        run_path=lambda path, run_name: run_marked(path, run_name, loops),
        run_module=runpy.run_module,
    )
    with _forked_by_us(Path(folder), started, loops):
        multiprocessing.spawn.spawn_main(**handles)


class _Watched:
    """The function of a process, or its `run`."""

    def __init__(
        self,
        function: Callable[..., Any],
        number: int,
        folder: Path,
        started: Started,
        loops: Loops,
    ) -> None:
        self._function, self._number, self._folder = function, number, folder
        self._started, self._loops = started, loops

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it, and leaves the report. A sick training ends its process with status 1."""
        trail = _Trail()
        leave(trail)
        config = self._started.config
        folder = artifact_folder(config) / f"process{self._number}"
        config = replace(config, snapshot_dir=str(folder))
        run = ScriptRun(
            self._started.entrypoint, lambda: None, self._loops, config, Progress(), in_code=True
        )
        returned: Any = None
        report: Report | None = None
        ended = True  # by the watching
        try:
            with run.watching(lambda error: False):
                returned = self._function(*args, **kwargs)
                ended = False
        except BaseException as error:
            ended = False
            # what is shown of it is the training's own
            error.__traceback__ = without_ours(error.__traceback__)
            raise
        finally:
            # an error of nanodoc's own must not become the training's
            with contextlib.suppress(Exception):
                report = run.report()
                self._tell(report, ended=ended)
            trail.over()
        if ended:
            sys.exit(int(report is not None and report.verdict in ("critical", "failed")))
        return returned

    def _tell(self, report: Report, *, ended: bool) -> None:
        path = self._folder / str(self._number)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(packed("ended" if ended else "report", report))
        unfinished.rename(path)


class _Trail(NoTrail):
    """Nobody reads it. Who is told that another process of the script has failed ends the others by
    SIGTERM: not while they look for what went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self._before: Any = None
        self._told = False

    def examining(self) -> None:
        if threading.current_thread() is threading.main_thread() and self._before is None:
            self._before = signal.signal(signal.SIGTERM, self._later)

    def _later(self, *_: object) -> None:
        self._told = True

    def over(self) -> None:
        """SIGTERM does again what it did; one that came meanwhile does it now."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
            if self._told:
                signal.raise_signal(signal.SIGTERM)


def _may_train(process: BaseProcess) -> bool:
    """It runs the script's own code, and no loader's, pool's or manager's."""
    if getattr(process, "_start_method", None) == "forkserver":
        return False
    if (
        getattr(process, "_start_method", None) is None
        and multiprocessing.get_start_method(allow_none=True) == "forkserver"
    ):
        return False
    if type(process).run is not BaseProcess.run:
        code = getattr(type(process).run, "__code__", None)
        return code is not None and frame_kind(code.co_filename) == USER
    target = vars(process).get("_target")
    if target is spawned:
        return True
    code = getattr(target, "__code__", None)  # of a function, or of a method
    return code is not None and frame_kind(code.co_filename) == USER


@contextlib.contextmanager
def _started_through(
    start: Callable[[BaseProcess, Callable[..., None]], None],
) -> Iterator[None]:
    """Every process is started by `start`, which is given the original."""
    kind: Any = BaseProcess
    original = kind.start

    def started(process: BaseProcess) -> None:
        start(process, original)

    kind.start = started
    try:
        yield
    finally:
        if kind.start is started:
            kind.start = original


@contextlib.contextmanager
def _spawned_by_us(folder: Path) -> Iterator[None]:
    """A process that is spawned meanwhile begins with `spawn_main` above."""
    spawn: Any = multiprocessing.spawn
    original = spawn.get_command_line

    def command(**handles: Any) -> list[str]:
        line: list[str] = original(**handles)
        place = line.index("-c") + 1 if "-c" in line else None
        if place is not None:
            told = ", ".join(f"{name}={value!r}" for name, value in handles.items())
            line[place] = (
                f"import sys; sys.path.append({OURS!r}); "
                f"from nanodoc.pipeline.processes import spawn_main; "
                f"spawn_main({str(folder)!r}, {told})"
            )
        return line

    spawn.get_command_line = command
    try:
        yield
    finally:
        spawn.get_command_line = original


@contextlib.contextmanager
def _forked_by_us(folder: Path, started: Started, loops: Loops) -> Iterator[None]:
    """A process that begins meanwhile, here or in a fork, is watched."""
    kind: Any = BaseProcess
    original = kind._bootstrap

    def bootstrap(process: Any, *args: Any, **kwargs: Any) -> int:
        kind._bootstrap = original
        number = vars(process).pop(_NUMBER, None)
        if number is not None:
            if process._target is spawned:
                # it keeps what the function raises to itself
                function, *rest = process._args
                process._args = (_Watched(function, number, folder, started, loops), *rest)
            else:
                process.run = _Watched(process.run, number, folder, started, loops)
        return int(original(process, *args, **kwargs))

    kind._bootstrap = bootstrap
    try:
        yield
    finally:
        kind._bootstrap = original


def _named(report: Report, number: int) -> Report:
    place, *rest = report.run.step_found.split(", ")
    found = ", ".join([f"{place} (process {number})", *rest]) if place else ""
    return replace(report, run=replace(report.run, step_found=found))


def _of_ranks(reports: list[Report], size: int, config: Config) -> Report | None:
    """One report of `size` processes that are the ranks of one group; None where they are not."""
    known = {
        report.of_rank.rank: (outcome_of_rank(report.of_rank, report), report)
        for report in reports
        if report.of_rank is not None
        and report.of_rank.grouped
        and report.of_rank.world_size == size
    }
    if not known or len(known) < len(reports):
        return None
    pairs: list[tuple[RankOutcome, Report | None]] = [
        known.get(rank, (RankOutcome(rank=rank, ended=ENDED, why=_NO_REPORT), None))
        for rank in range(size)
    ]
    across = diagnose(Evidence(ranks=tuple(outcome for outcome, _ in pairs)), config)
    return merge(pairs, across, superseded(across))
