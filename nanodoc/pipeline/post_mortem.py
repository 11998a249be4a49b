"""From how a child ended to a report: what is known without it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import signal
import socket
from dataclasses import replace
from typing import Any

from nanodoc._version import __version__
from nanodoc.environment.variables import attempt
from nanodoc.facts.death import LAST_WORDS, SECOND_RUN, STACK, DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import peer_left
from nanodoc.facts.ranks import CLEAN, DIED, ENDED, FAILED, HUNG, WELL, RankOutcome
from nanodoc.facts.source import SourceSpan
from nanodoc.heartbeat.last_words import failure_of, spans_of, waits_for_ranks
from nanodoc.heartbeat.memory_limit import memory_limit
from nanodoc.heartbeat.trail import EXAMINATION
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.supervise.job import Job
from nanodoc.supervise.parent import Ended
from nanodoc.trace.files import SKIP, USER, frame_kind, line_span

# One line of faulthandler's output, innermost call first.
_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.M)


def died(ended: Ended) -> bool:
    """It ended without a word to the parent."""
    return (
        ended.report is None
        and ended.usage is None
        and ended.internal is None
        and not ended.interrupted
    )


def failure_noted(ended: Ended) -> tuple[Failure | None, int | None]:
    """The exception the child had noted before it examined it, and its step."""
    words = ended.trail.words or {}
    if words.get("said") != "failure":
        return None, None
    step = words.get("step")
    return failure_of(words), step if isinstance(step, int) else None


def death_of(ended: Ended) -> DeathFacts:
    """The facts of a child that died. The frames are its last words, else those of the stack it
    left."""
    trail = ended.trail
    words: dict[str, Any] = dict(trail.words or {})
    spoken = words.get("said") in ("exit", "asked", "line")
    frames = spans_of(words.get("frames", ())) if spoken else ()
    known = {"line": SECOND_RUN}.get(str(words.get("said")), LAST_WORDS) if frames else ""
    call = words.get("call") if spoken else None
    if not frames:
        frames, call = _stack(ended.stack)
        known = STACK if frames else ""
    # asked while it waited, it may only have answered when the rank it waited for was gone; the
    # stack is of the moment it was asked
    waits = (spoken and bool(words.get("frames")) and bool(words.get("waits"))) or _in_collective(
        ended.stack
    )
    module = words.get("module") if spoken else None
    limit, of = memory_limit()
    return DeathFacts(
        signal=signal.Signals(-ended.status).name
        if ended.status < 0 and ended.silent_for is None
        else None,
        status=ended.status if ended.status >= 0 else None,
        silent_for=ended.silent_for,
        step=trail.step,
        phase=trail.phase if trail.phase != "start" else "setup",
        frames=frames,
        known_from=known,
        module=module[0] if module else None,
        module_type=module[1] if module else None,
        call=call,
        item=words.get("item") if spoken else None,
        waits=waits,
        peak_memory=ended.peak_memory,
        memory_limit=limit,
        memory_limit_of=of,
        killed_for_memory=ended.killed_for_memory and ended.status == -signal.SIGKILL,
    )


def outcome_of(ended: Ended, report: Report, mine: int) -> RankOutcome:
    """How one rank of several ended."""
    facts, trail = report.of_rank, ended.trail
    failure, step = failure_noted(ended)
    first = report.findings[0] if report.findings else None
    common = RankOutcome(
        rank=mine,
        host=socket.gethostname(),
        steps=trail.finished,
        step=trail.step,
        phase=trail.phase if trail.phase != EXAMINATION else "",
        loss=trail.losses[-1] if trail.losses else None,
        why=first.title if first is not None and first.severity == "critical" else "",
        location=first.culprit.location if first is not None else None,
        # it was asked while it waited: what it knows at its end is of later
        collectives=trail.collectives or (facts.collectives if facts is not None else ()),
    )
    peer = failure is not None and peer_left(failure)
    outside = "ended from outside" if ended.interrupted and ended.report is None else None
    if (why := ended.waited or outside) or (ended.silent_for is not None and not peer):
        return _stood_still(ended, common, why)
    if failure is not None:
        return replace(
            common,
            ended=FAILED,
            step=step,
            phase=failure.phase,
            peer=peer,
            waits=peer,
            why=f"{failure.type}: {failure.first_line[:160]}",
        )
    if died(ended):
        death = death_of(ended)
        return replace(
            common,
            ended=DIED,
            waits=death.waits,
            # faulthandler names the thread that a signal came to, where that is one of Python's
            aborted=death.waits
            and death.signal == "SIGABRT"
            and "Current thread" not in ended.stack,
            location=death.frames[-1] if death.frames else common.location,
        )
    if facts is None:
        return replace(common, ended=FAILED if report.verdict in ("critical", "failed") else WELL)
    return replace(
        common,
        ended=facts.own,
        step=facts.step,
        phase=facts.phase,
        peer=facts.peer,
        waits=facts.peer,
        loss=facts.loss,
        **facts.for_all(),
        why="" if facts.own in (WELL, CLEAN) else common.why,
    )


def _stood_still(ended: Ended, common: RankOutcome, why: str | None) -> RankOutcome:
    """A rank that was ended where it stood; without a `why`, since it stood there for too long."""
    death = death_of(ended)
    still = replace(common, stack=death.frames, collectives=ended.trail.collectives or ())
    if why is None:
        return replace(still, ended=HUNG, waits=death.waits)
    location = death.frames[-1] if death.frames else None
    return replace(still, ended=ENDED, why=why, location=location)


def _stack(text: str) -> tuple[tuple[SourceSpan, ...], str | None]:
    """The user's frames of faulthandler's dump, outermost first, and the function of torch's they
    were in. Of several threads, the first with a frame of the user's: the main thread comes last
    and the one that crashed first."""
    threads = re.split(r"^(?:Current thread|Thread) ", text, flags=re.M)
    for thread in threads:
        found = [
            (match["file"], int(match["line"]), match["function"])
            for match in _FRAME.finditer(thread)
        ]
        users = [
            line_span(file, line, function)
            for file, line, function in reversed(found)
            if frame_kind(file) == USER
        ]
        if users:
            call = found[0][2] if frame_kind(found[0][0]) == SKIP else None
            return tuple(users), call
    return (), None


def _in_collective(text: str) -> bool:
    """The innermost frames, up to the user's first, wait for other ranks."""
    for match in _FRAME.finditer(text):
        if frame_kind(match["file"]) == USER:
            return False
        if waits_for_ranks(match["file"], match["function"]):
            return True
    return False


def report_without(
    job: Job, ended: Ended, evidence: Evidence, not_checked: list[tuple[str, str]]
) -> Report:
    """The report on a run whose process is gone."""
    trail, config = ended.trail, job.config
    info = RunInfo(
        entrypoint=str(job.options.get("entrypoint") or job.launch or job.target),
        command=job.command,
        config=config.as_dict(),
        device=trail.device or config.device,
        amp=config.amp,
        seed=config.seed,
        steps_requested=max(trail.planned or config.steps or 0, trail.finished),
        steps_run=trail.finished,
        torch=_version("torch"),
        python=platform.python_version(),
        reproduced="not_run",
        attempt=attempt(os.environ),
    )
    return Report(
        nanodoc=__version__,
        run=info,
        findings=diagnose(evidence, config),
        not_checked=tuple(not_checked),
        vitals=VitalSigns(
            steps=trail.finished,
            losses=trail.losses,
            grad_norms=trail.grad_norms,
            peak_memory=ended.peak_memory,
        ),
        artifacts={},
        interrupted=ended.interrupted,
        broke=evidence.failure is not None or evidence.death is not None,
    )


def left_by_itself(job: Job, ended: Ended) -> Report:
    """A script that called os._exit(0), as its author meant it to end."""
    why = "the script ended its own process (os._exit)"
    return report_without(
        job,
        ended,
        Evidence(steps_run=ended.trail.finished),
        [("checks at the end of a run", why)],
    )


def died_examining(ended: Ended) -> bool:
    """The training had ended; what died were nanodoc's own runs of its steps."""
    return ended.trail.phase == EXAMINATION


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
