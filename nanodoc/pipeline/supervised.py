"""One command from start to report, whatever becomes of the process that runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nanodoc.config import Config, artifact_folder
from nanodoc.errors import InternalError, NanodocError, UsageError
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import worker_died
from nanodoc.facts.ranks import ENDED, FAILED, LOST
from nanodoc.pipeline.merged import merged_report
from nanodoc.pipeline.one_process_run import with_whole_model
from nanodoc.pipeline.post_mortem import (
    death_of,
    died,
    died_examining,
    failure_noted,
    left_by_itself,
    outcome_of,
    report_without,
)
from nanodoc.pipeline.second_looks import SecondLooks
from nanodoc.pipeline.traced_again import traced_again
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.supervise.job import Job
from nanodoc.supervise.parent import Child, Ended
from nanodoc.supervise.rendezvous import Ranks
from nanodoc.supervise.wire import CLOSED


def supervised(job: Job, progress: Progress) -> Report:
    """Runs the job in a child and returns its report, or one on its end. Raises `UsageError`,
    `InternalError` and `KeyboardInterrupt`."""
    ended = Child(job, progress, job.config.timeout).run()
    return traced_again(job, ended, _report_of(job, ended, progress), progress)


def supervised_rank(job: Job, progress: Progress, ranks: Ranks) -> Report | None:
    """One rank's part of a distributed run. The merged report for the rank that prints it
    (`ranks.printed()` is to be called then), None for the others. Raises as `supervised`."""
    folder = rank_folder(job.config, ranks.mine)
    job = replace(job, config=replace(job.config, snapshot_dir=str(folder)), alone=False)
    ended = Child(job, progress, job.config.timeout, watch=ranks.beat).run()
    wrong: NanodocError | None = None
    try:
        report = _report_of(job, ended, progress)
        outcome = outcome_of(ended, report, ranks.mine)
    except (InternalError, UsageError) as error:
        wrong = error
        report = report_without(
            job,
            ended,
            Evidence(steps_run=ended.trail.finished),
            [(f"rank {ranks.mine}", str(error))],
        )
        how = FAILED if isinstance(error, UsageError) else ENDED
        outcome = replace(
            outcome_of(ended, report, ranks.mine), ended=how, why=str(error), phase="setup"
        )
    pairs = ranks.settle(outcome, report)
    if wrong is not None and (
        pairs is None or all(outcome.why == str(wrong) for outcome, _ in pairs)
    ):
        raise wrong  # each rank its own line, and where it is the same everywhere, nothing else
    if pairs is None:
        return None
    if all(
        outcome.ended == LOST and not outcome.host
        for outcome, _ in pairs
        if outcome.rank != ranks.mine
    ) and not (report.of_rank and report.of_rank.grouped):
        alone = (
            "the other ranks",
            f"RANK and WORLD_SIZE={ranks.size} are set, but no other rank appeared",
        )
        return replace(report, not_checked=(*report.not_checked, alone), of_rank=None)
    merged = merged_report(pairs, job.config)
    if ranks.trouble is not None:
        merged = replace(
            merged, not_checked=(*merged.not_checked, ("the other ranks", ranks.trouble))
        )
    return with_whole_model(job, merged, progress, ranks.still_there, ended.seconds)


def rank_folder(config: Config, mine: int) -> Path:
    """Every rank writes its snapshots and its history into a folder of its own."""
    return artifact_folder(config) / f"rank{mine}"


def _report_of(job: Job, ended: Ended, progress: Progress) -> Report:
    if ended.usage is not None:
        raise UsageError(ended.usage)
    if died(ended) and not ended.started:
        raise InternalError(
            f"the process of the training ended before it began: {death_of(ended).how}; its "
            "output is on stderr"
        )
    if (ended.trail.words or {}).get("said") == CLOSED and ended.report is None:
        raise InternalError(
            "the training closed nanodoc's file descriptor (os.closerange?); run it "
            "with --in-process"
        )
    if died(ended) or (ended.internal is not None and failure_noted(ended)[0] is not None):
        return _dead(job, ended, progress)
    if ended.internal is not None:
        raise InternalError(ended.internal)
    if ended.report is None:  # interrupted before there was anything to say of it
        if not ended.trail.finished:
            raise KeyboardInterrupt
        return report_without(
            job,
            ended,
            Evidence(steps_run=ended.trail.finished),
            [("the run", "it was killed from outside")],
        )
    failure, step = failure_noted(ended)
    if failure is not None and job.command == "run" and job.alone and not ended.report.interrupted:
        return SecondLooks(job, ended, progress).at_failure(ended.report, failure, step)
    return ended.report


def _dead(job: Job, ended: Ended, progress: Progress) -> Report:
    failure, step = failure_noted(ended)
    # torch's signal handler raises wherever it strikes
    if failure is not None and worker_died(failure) is not None:
        unseen = (
            []
            if job.alone
            else [
                (
                    "loading the batches again without workers",
                    "only done for a recipe that runs in one process",
                )
            ]
        )
        report = report_without(
            job,
            ended,
            Evidence(failure=failure, failure_step=step, steps_run=ended.trail.finished),
            unseen,
        )
        looks = SecondLooks(job, ended, progress)
        return looks.at_failure(report, failure, step) if job.alone else report
    if failure is not None:  # the exception is known, its examination came to nothing
        why = (
            f"an error of nanodoc's own: {ended.internal}"
            if ended.internal
            else death_of(ended).how
        )
        evidence = Evidence(failure=failure, failure_step=step, steps_run=ended.trail.finished)
        return report_without(job, ended, evidence, [("the examination", f"it ended with {why}")])
    if died_examining(ended):
        why = (
            f"the training finished {ended.trail.finished} steps, and the process that "
            f"examined them {death_of(ended).how}"
        )
        return replace(
            report_without(
                job,
                ended,
                Evidence(steps_run=ended.trail.finished),
                [("checks at the end of a run", why)],
            ),
            interrupted=True,
        )
    if job.launch is not None and ended.status == 0:
        return left_by_itself(job, ended)
    death, looks = death_of(ended), SecondLooks(job, ended, progress)
    if job.command == "run" and job.alone:
        if death.silent_for is None:
            death = looks.at_death(death)
        elif death.phase == "data" and not death.frames:
            death = looks.at_silence(death)
    evidence = Evidence(death=death, steps_run=ended.trail.finished)
    return looks.told(report_without(job, ended, evidence, []))
