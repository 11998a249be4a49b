"""The first steps of a healthy training whose model is sharded over several ranks, once more in one
process that has the whole model: the checks that re-run steps, which no rank of several can make,
since the others would have to make them, too."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace

from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.evidence import EXPERIMENTS
from nanodoc.facts.ranks import WELL
from nanodoc.looks.scheduler import Look, Looks, Place, Stage
from nanodoc.pipeline.by_itself import fits, sick_part, with_experiments
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.rules.catalogue import unchecked
from nanodoc.supervise.job import Job, SecondRun, without_files
from nanodoc.supervise.landlock import can_be_kept_from_writing
from nanodoc.supervise.one_rank import group_of_one
from nanodoc.supervise.parent import Child, Ended

_MOST_STEPS = 48
"""As many as a run watches in full before it watches fewer."""
_FEWEST_STEPS = 2
_SHARE = 1 / 3
"""Of the budget, for the steps themselves; starting the process and the looks take the rest."""
_STATES = 3
"""Weights, and the two that Adam keeps of each."""
_SHOWN = "checks that re-run steps"
CACHES = ("TMPDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Where libraries write what the process itself needs."""


def with_whole_model(
    job: Job,
    report: Report,
    progress: Progress,
    still_there: Callable[[], None],
    seconds: float,
) -> Report:
    """The report of all ranks with what one process that has the whole model, or the sick part of
    it, shows in what is left of the budget. `seconds`: how long the run took on this rank;
    `still_there` is called often meanwhile."""
    looks, found = Looks(job.config.budget, spent=report.looked), [report]

    def experiments(place: Place) -> None:
        found[0] = with_experiments(job, found[0], progress, still_there, place)

    def first_steps(place: Place) -> None:
        found[0] = _with_first_steps(job, found[0], progress, still_there, seconds, place)

    looks.add(
        Look(
            name="the sick part of the model",
            group="experiments by one process",
            stage=Stage.EXPERIMENTS,
            likely=0.5,  # its process makes the experiments of a run in one process
            runs=0,
            asks=lambda: sick_part(found[0]) is not None,
            work=experiments,
        )
    )
    looks.add(
        Look(
            name="the first steps",
            group=_SHOWN,
            stage=Stage.LAST_STEPS,
            likely=0.1,  # most trainings that reach their end are well
            runs=0,
            asks=lambda: _wanted(job, found[0]),
            needs=lambda: _hindered(found[0]),
            work=first_steps,
        )
    )
    looks.run()
    return replace(
        found[0],
        not_checked=(*found[0].not_checked, *looks.not_checked()),
        interrupted=found[0].interrupted or looks.interrupted,
    )


def _with_first_steps(
    job: Job,
    report: Report,
    progress: Progress,
    still_there: Callable[[], None],
    seconds: float,
    place: Place,
) -> Report:
    """With what the rules find that no rank could judge."""
    budget = place.left
    per_step = seconds / max(report.vitals.steps, 1)
    steps = int(min(_MOST_STEPS, report.vitals.steps, max(_SHARE * budget / per_step, 1)))
    if steps < min(_FEWEST_STEPS, report.vitals.steps):
        budget = job.config.budget
        return _noted(report, f"--budget ({budget:.0f} s) has no room for steps by one process")
    progress.say("running the first steps in one process with the whole model …")
    ended = _run(job, steps, progress, still_there, place.left)
    told = ended.report
    if told is None or not told.whole:
        return _noted(report, f"not made by one process with the whole model: {_why_not(ended)}")
    return _joined(report, told)


def _hindered(report: Report) -> str:
    """Why it can't be done here; "" where it can."""
    if not can_be_kept_from_writing():
        return "this system cannot stop a second start of the training from writing files"
    held = max((rank.whole_size for rank in report.ranks), default=0)
    if not fits(_STATES * held):
        return "one process with the whole model may not fit in this machine's memory"
    return ""


def _wanted(job: Job, report: Report) -> bool:
    config = job.config
    asked = config.preflight or config.overfit_batch or config.abort_after_step is not None
    well = all(rank.ended == WELL and rank.sharded for rank in report.ranks)
    return (
        job.command == "run"
        and not asked
        and report.whole
        and report.verdict != "critical"
        and bool(report.ranks and well and report.unjudged)
    )


def _run(
    job: Job, steps: int, progress: Progress, still_there: Callable[[], None], longest: float
) -> Ended:
    with tempfile.TemporaryDirectory(prefix="nanodoc-") as folder:
        config = without_files(job.config, folder, steps)
        config = replace(config, budget=longest * _SHARE)
        again = replace(job, config=config, live=False, again=SecondRun(muted=True))
        return Child(
            again,
            Progress(say=progress.say),
            None,
            {**group_of_one(), **dict.fromkeys(CACHES, folder)},
            watch=lambda trail, crumbs: still_there(),
            longest=longest,
        ).run()


def _why_not(ended: Ended) -> str:
    """In words for the report."""
    if ended.silent_for is not None:
        return "the --budget is used up"
    if ended.usage is not None or ended.internal is not None:
        return ended.usage or ended.internal or ""
    told = ended.report
    if told is None:
        return "its process ended first"
    first = next(iter(told.findings), None)
    if told.broke and first is not None:
        return f"the training failed there ({first.code} {first.title})"
    return "none of its steps could be watched"


def _joined(report: Report, told: Report) -> Report:
    """What that process found under rules that the ranks could not judge, behind what they did."""
    open_before = {code for code, _ in report.unjudged}
    left = tuple(row for row in told.unjudged if row[0] in open_before)
    judged = open_before - {code for code, _ in left}
    known = {finding.fingerprint for finding in report.findings}
    found = tuple(
        _seen(finding, told.vitals.steps)
        for finding in told.findings
        if finding.code in judged and finding.fingerprint not in known
    )
    before = set(unchecked(report.unjudged))
    rows = [row for row in report.not_checked if row not in before and row[0] != EXPERIMENTS]
    leading = tuple(one for one in found if one.severity == "critical")
    behind = tuple(one for one in found if one.severity != "critical")
    place = report.run.step_found
    steps = f"{told.vitals.steps} steps also run by one process"
    return replace(
        report,
        run=replace(report.run, step_found=f"{place}, {steps}" if place else ""),
        findings=(*leading, *report.findings, *behind),
        unjudged=left,
        not_checked=(*rows, *unchecked(left)),
    )


def _seen(finding: Finding, steps: int) -> Finding:
    seen = f"in {steps} steps that one process with the whole model ran"
    return replace(finding, evidence=(*finding.evidence, ("seen", seen)))


def _noted(report: Report, why: str) -> Report:
    return replace(report, not_checked=(*report.not_checked, (_SHOWN, why)))
