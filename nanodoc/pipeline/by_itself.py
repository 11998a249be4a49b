"""The sick step of a sharded model by one process that has the whole model: experiments and fixes,
which no rank of several can make, since the others would have to make them, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanodoc.config import artifact_folder
from nanodoc.environment.system import memory, memory_limit
from nanodoc.errors import UsageError
from nanodoc.facts.evidence import EXPERIMENTS
from nanodoc.looks.scheduler import Place
from nanodoc.progress import Progress
from nanodoc.replay.shared_index import Index, read_index
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report
from nanodoc.supervise.job import Job
from nanodoc.supervise.one_rank import group_of_one
from nanodoc.supervise.parent import Child

_TIMES = 3


def sick_part(report: Report) -> tuple[Path, Index] | None:
    """The folder of a snapshot whose parts can be run apart, where the report of all ranks has
    one."""
    told = report.artifacts.get("snapshot")
    folder = Path(told) if told is not None else None
    if folder is None or not folder.is_dir() or not report.findings or report.interrupted:
        return None
    try:
        index = read_index(folder)
    except UsageError:
        return None
    return (folder, index) if index.apart else None


def with_experiments(
    job: Job,
    report: Report,
    progress: Progress,
    still_there: Callable[[], None],
    place: Place,
) -> Report:
    """The report of all ranks with what is tried on the part of the rank that was sick. The replay
    as a whole takes no longer than `place` has. `still_there` is called often meanwhile."""
    part = sick_part(report)
    if part is None:
        return report
    folder, index = part
    by = f"made of rank {index.first}'s part, by one process with the whole model"
    if not fits(index.size):
        return _noted(report, f"not {by}: it may not fit in this machine's memory")
    progress.say(f"running rank {index.first}'s part of the step by itself …")
    ended = Child(
        _replay(job, folder, place.left),
        progress,
        None,
        group_of_one(),
        watch=lambda trail, crumbs: still_there(),
        longest=place.left,
    ).run()
    if ended.report is None:
        late = ended.silent_for is not None
        why = ended.usage or ("the --budget is used up" if late else "its process ended first")
        return _noted(report, f"not {by}: {why}")
    first = report.findings[0]
    found = next(
        (one for one in ended.report.findings if one.fingerprint == first.fingerprint), None
    )
    if found is None:
        return _noted(report, f"not {by}: the step did not show the same when it was run this way")
    first = replace(
        first,
        confidence=max(first.confidence, found.confidence),
        evidence=(*first.evidence, ("experiments", by)),
        experiments=found.experiments,
        fixes=found.fixes,
        cause=found.cause,
        cause_why=found.cause_why,
    )
    report = replace(
        report,
        findings=(first, *report.findings[1:]),
        not_checked=tuple(row for row in report.not_checked if row[0] != EXPERIMENTS),
    )
    return write_patch(report, artifact_folder(job.config)) if job.config.fix else report


def fits(size: int) -> bool:
    """Weights, optimizers and gradients, and a copy of them; the machine may not tell."""
    try:
        free, limit = memory()[1], memory_limit()
        return _TIMES * size < (free if limit is None else min(free, limit))
    except (OSError, ValueError, KeyError, IndexError):
        return True


def _replay(job: Job, folder: Path, budget: float) -> Job:
    """The same as `nanodoc replay FOLDER`, without files of its own, in `budget` seconds."""
    config = replace(job.config, steps=None, fix=False, stats=False, tensorboard=None)
    config = replace(config, live=False, output=None, budget=budget)
    return Job(command="replay", target=str(folder), config=config)


def _noted(report: Report, why: str) -> Report:
    others = tuple(row for row in report.not_checked if row[0] != EXPERIMENTS)
    return replace(report, not_checked=(*others, (EXPERIMENTS, why)))
