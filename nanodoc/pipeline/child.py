"""The child's side: does the job, tells the parent how far it is, and leaves its last words where
it can."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from nanodoc.config import artifact_folder
from nanodoc.errors import NanodocError, UsageError, said
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import worker_died
from nanodoc.heartbeat import trail as crumbs
from nanodoc.heartbeat.answering import hears
from nanodoc.heartbeat.last_words import ASK, CONCLUDE, DUMP, note_failure, speak_before_the_end
from nanodoc.loop.interrupts import told_to_end, waited_long_enough
from nanodoc.progress import LiveMetrics, Progress
from nanodoc.supervise.job import Job
from nanodoc.supervise.landlock import keep_from_writing
from nanodoc.supervise.lines import LineWatch
from nanodoc.supervise.wire import CLOSED, Sender, opened

if TYPE_CHECKING:
    from nanodoc.report.report import Report

_BETWEEN = 0.1  # seconds between two messages about progress


def begin(events: int, page: int, stack: int, asked: int) -> tuple[Sender, crumbs.TrailWriter]:
    """Before the job is known: can be heard from here on, and imports what every job needs."""
    sender = Sender(events)
    trail = crumbs.TrailWriter(page)
    crumbs.leave(trail)
    # a thread without Python's frames may be the one that crashes
    faulthandler.enable(file=stack, all_threads=True)
    if DUMP is not None:
        faulthandler.register(DUMP, file=stack, all_threads=True)
    if CONCLUDE is not None:
        signal.signal(CONCLUDE, _Conclusion(sender))
    speak_before_the_end(trail, ASK)
    hears(asked)
    sys.meta_path.insert(0, _Imports(trail))
    sender.on_closed = lambda: trail.say({"said": CLOSED})
    sender.send("started")
    try:
        import nanodoc.pipeline.script  # noqa: F401 - with most of nanodoc, and torch
    except Exception as error:  # torch can't be imported
        if os.environ.get("NANODOC_DEBUG"):
            traceback.print_exc()
        sender.send("internal", said_of(error))
        sys.exit(1)
    return sender, trail


def work(body: bytes, sender: Sender, trail: crumbs.TrailWriter) -> int:
    """Does the job whose message is `body`; the exit status matters to nobody."""
    job: Job = opened(body[4:])[1]
    # a script that parses its command line must not see ours, in its steps neither
    sys.argv[1:] = []
    # What was imported stays to the end. To look at it again whenever garbage is collected, at the
    # process's end too, takes longer than a short training.
    gc.freeze()
    gc.enable()
    try:
        if job.again is not None and job.again.lines:
            with LineWatch(trail, job.again.step):
                report = perform(job, _progress(sender, job.live))
        else:
            report = perform(job, _progress(sender, job.live))
    except UsageError as error:
        sender.send("usage", str(error))
    except KeyboardInterrupt:
        sender.send("interrupted")
    except Exception as error:
        told = describe_death(error)
        if told is not None:
            note_failure(trail, told, trail.step)
        if os.environ.get("NANODOC_DEBUG"):
            traceback.print_exc()
        sender.send("internal", said_of(error))
    else:
        sender.send("report", report)
    sys.stdout.flush()
    return 0


class _Conclusion:
    """The handler of CONCLUDE: SIGTERM is about to come. A handler of the training's own is called
    in its place, once and alone."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._asked = self._handled = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            waited_long_enough()
            return
        own = signal.getsignal(signal.SIGTERM)
        if own == signal.SIG_DFL:
            self._asked = True
            told_to_end()
        elif callable(own) and not self._handled:
            self._handled = True
            self._sender.send("handled")
            signal.raise_signal(signal.SIGTERM)


class _Imports:
    """Stands before the finders of modules and finds none: a long import is no hang. torch imports
    a thousand modules with the first optimizer, which takes seconds."""

    def __init__(self, trail: crumbs.TrailWriter) -> None:
        self._trail = trail

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self._trail.sign()


def perform(job: Job, progress: Progress) -> Report:
    """Runs the command, in whichever process this is. Raises `UsageError`."""
    from nanodoc.pipeline.check_grad_graph import check_grad_graph
    from nanodoc.pipeline.replay import replay_snapshot
    from nanodoc.pipeline.run import run_training

    options = dict(job.options)
    if job.command == "check-grad-graph":
        return check_grad_graph(job.target, job.config, **options)
    if job.command == "replay":
        from nanodoc.pipeline.replay_options import ReplayOptions

        entrypoint = options.pop("entrypoint", None)
        minimal = options.pop("minimal", None)
        told = ReplayOptions(minimal=Path(minimal) if minimal is not None else None, **options)
        return replay_snapshot(Path(job.target), job.config, entrypoint, told, progress)
    with _muted(job) if job.again is not None and job.again.muted else contextlib.nullcontext():
        if job.launch is not None:
            from nanodoc.pipeline.run_script import run_script

            trace = job.again.trace if job.again is not None else None
            return run_script(job.launch, job.config, progress, trace)
        return run_training(job.target, job.config, progress, job.again)


def _muted(job: Job) -> contextlib.AbstractContextManager[None]:
    """For the rest of this process: nothing that the training does leaves anything behind, be it
    done by a thread or by native code."""
    from nanodoc.script.muted_process import muted_process

    own = artifact_folder(job.config).as_posix()
    # what a group of ranks agrees on goes over TCP, also where it is a group of one
    of_script = job.again is not None and job.again.trace is not None
    keep_from_writing((own, "/dev", "/proc"), connecting=not of_script)
    return muted_process(own)


def describe_death(error: Exception) -> Failure | None:
    """torch's own handler of SIGCHLD tells of a loader's dead worker, wherever the training, or
    nanodoc, is just then."""
    failure = Failure(
        type=type(error).__name__,
        message=said(error),
        phase="data",
        frames=(),
        raised_by_torch=True,
        torch_function=None,
    )
    return failure if worker_died(failure) is not None else None


def said_of(error: Exception) -> str:
    """An error of our own on one line, with where it came from."""
    if isinstance(error, NanodocError):
        return str(error).removeprefix("internal error: ")
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(said(error).split())[:300]
    return f"{type(error).__name__}: {text} ({place.name}, line {place.lineno})"


def _progress(sender: Sender, live: bool) -> Progress:
    """Progress that is told to the parent, at most every so often: a message is a system call."""
    from time import monotonic

    told = 0.0

    def due(step: int, steps: int) -> bool:
        nonlocal told
        if monotonic() - told < _BETWEEN and step + 1 < steps:
            return False
        told = monotonic()
        return True

    def stepped(step: int, steps: int, loss: float) -> None:
        if due(step, steps):
            sender.send("step", (step, steps, loss))

    def lived(step: int, steps: int, now: LiveMetrics) -> None:
        if due(step, steps):
            plain = LiveMetrics(
                losses=tuple(now.losses),
                grad_norms=tuple(now.grad_norms),
                rates=tuple(now.rates),
                update_ratios=tuple(now.update_ratios),
                samples_per_second=now.samples_per_second,
                load_share=now.load_share,
            )
            sender.send("live", (step, steps, plain))

    def said(text: str) -> None:
        sender.send("say", text)

    return Progress(
        stepped if not live else lambda step, steps, loss: None, said, lived if live else None
    )
