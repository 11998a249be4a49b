"""The child's side: does the job, tells the parent how far it is, and leaves its last words where it can."""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from nanodoc.errors import NanodocError, UsageError
from nanodoc.process import crumbs
from nanodoc.process.job import Job
from nanodoc.process.last_words import ASK, DUMP, speak_before_the_end
from nanodoc.process.lines import LineWatch
from nanodoc.process.wire import Sender, opened
from nanodoc.progress import Now, Progress

if TYPE_CHECKING:
    from nanodoc.report.model import Report

_BETWEEN = 0.1  # seconds between two messages about progress


def work(body: bytes, events: int, page: int, stack: int) -> int:
    """Does the job whose message is `body`; the exit status matters to nobody."""
    job: Job = opened(body[4:])[1]
    sender = Sender(events)
    trail = crumbs.Crumbs(page)
    crumbs.leave(trail)
    faulthandler.enable(file=stack, all_threads=False)
    if DUMP is not None:
        faulthandler.register(DUMP, file=stack, all_threads=True)
    speak_before_the_end(trail, ASK)
    sender.send("started")
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
        if os.environ.get("NANODOC_DEBUG"):
            traceback.print_exc()
        sender.send("internal", said_of(error))
    else:
        sender.send("report", report)
    sys.stdout.flush()
    return 0


def perform(job: Job, progress: Progress) -> Report:
    """Runs the command, in whichever process this is. Raises `UsageError`."""
    from nanodoc import pipeline

    options = dict(job.options)
    if job.command == "check-grad-graph":
        return pipeline.check_grad_graph(job.target, job.config, **options)
    if job.command == "replay":
        from nanodoc.pipeline.replay import ReplayOptions

        entrypoint = options.pop("entrypoint")
        minimal = options.pop("minimal")
        told = ReplayOptions(minimal=Path(minimal) if minimal is not None else None, **options)
        return pipeline.replay(Path(job.target), job.config, entrypoint, told, progress)
    return pipeline.run(job.target, job.config, progress, job.again)


def said_of(error: Exception) -> str:
    """An error of our own on one line, with where it came from."""
    if isinstance(error, NanodocError):
        return str(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    said = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {said} ({place.name}, line {place.lineno})"


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

    def lived(step: int, steps: int, now: Now) -> None:
        if due(step, steps):
            plain = Now(
                losses=tuple(now.losses), grad_norms=tuple(now.grad_norms), rates=tuple(now.rates), update_ratios=tuple(now.update_ratios),
                samples_per_second=now.samples_per_second, load_share=now.load_share,
            )  # fmt: skip
            sender.send("live", (step, steps, plain))

    def said(text: str) -> None:
        sender.send("say", text)

    return Progress(stepped if not live else lambda step, steps, loss: None, said, lived if live else None)
