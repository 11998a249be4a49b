"""One command from start to report, whatever becomes of the process that runs it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nanodoc.config import Config, artifact_folder
from nanodoc.diagnosis.finding import Fix
from nanodoc.errors import InternalError, NanodocError, UsageError
from nanodoc.facts.cuda_errors import BLOCKING, is_cuda
from nanodoc.facts.death import LAST_WORDS, SECOND_RUN, DeathFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import device_is_lost, worker_died
from nanodoc.facts.ranks import ENDED, FAILED, LOST
from nanodoc.pipeline.by_itself import with_experiments
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.pipeline.merged import merged_report
from nanodoc.pipeline.one_process_run import with_looks
from nanodoc.pipeline.post_mortem import (
    death_of,
    died,
    died_examining,
    failure_noted,
    left_by_itself,
    outcome_of,
    report_without,
)
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.supervise.job import Job, SecondRun, without_files
from nanodoc.supervise.parent import Child, Ended
from nanodoc.supervise.rendezvous import Ranks
from nanodoc.supervise.wire import CLOSED

# The batch has no index out of range, so that this is no advice any more.
_PASSED_ON_CPU = (
    Fix(
        title="the batch passes on the CPU: look at the device's own log, at kernels of your own, "
        "and at what is kept from step to step",
        confidence="maybe",
    ),
)
_MORE_STEPS = 3  # beyond the step that died: a second run that gets so far does not die there


def supervised(job: Job, progress: Progress) -> Report:
    """Runs the job in a child and returns its report, or one on its end. Raises `UsageError`,
    `InternalError` and `KeyboardInterrupt`."""
    return _report_of(job, Child(job, progress, job.config.timeout).run(), progress)


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
    merged = with_experiments(job, merged, progress, ranks.still_there)
    return with_looks(job, merged, progress, ranks.still_there, ended.seconds)


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
        return _looked_closer(job, ended, ended.report, failure, step, progress)
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
        return _looked_closer(job, ended, report, failure, step, progress) if job.alone else report
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
    death = death_of(ended)
    if job.command == "run" and job.alone:
        if death.silent_for is None:
            death = _second_run(job, ended, death, progress)
        elif death.phase == "data" and not death.frames:
            death = _loaded_here(job, ended, death, progress)
    return report_without(job, ended, Evidence(death=death, steps_run=ended.trail.finished), [])


def _second_run(job: Job, ended: Ended, death: DeathFacts, progress: Progress) -> DeathFacts:
    """The same run once more, with every line of the user's noted down from the step on that the
    first one died in."""
    if death.killed_for_memory:
        return replace(death, again_note="not re-run: it would run out of memory again")
    if ended.seconds > job.config.budget:
        return replace(death, again_note=_too_long(job, ended))
    progress.say("re-running it line by line")
    again = _again(
        job,
        SecondRun(step=death.step, lines=True),
        steps=death.step + _MORE_STEPS if death.step is not None else None,
    )
    other, _ = failure_noted(again)
    if other is not None:
        note = f"run again, it raised {other.type} in the {other.phase} before it got there"
        return replace(death, again_note=note)
    if not died(again):
        return replace(death, again=False, again_note="it did not end this way when it was re-run")
    second = death_of(again)
    same = (second.signal, second.status, second.step) == (death.signal, death.status, death.step)
    if not same or (death.frames and second.frames and _place(second) != _place(death)):
        return replace(
            death, again=False, again_note=f"run again, it {second.how} in step {second.step}"
        )
    if not second.frames:
        return replace(death, again=True)
    known = f"{death.known_from} and {SECOND_RUN}" if death.known_from else SECOND_RUN
    return replace(
        death,
        again=True,
        frames=second.frames if death.known_from != LAST_WORDS else death.frames,
        known_from=known,
        module=death.module or second.module,
        module_type=death.module_type or second.module_type,
        call=second.call or death.call,
        item=second.item,
    )


def _too_long(job: Job, ended: Ended) -> str:
    return (
        f"not run again: that takes {ended.seconds:.0f} s, and --budget allows "
        f"{job.config.budget:.0f}"
    )


def _loaded_here(job: Job, ended: Ended, death: DeathFacts, progress: Progress) -> DeathFacts:
    """The batches loaded again without workers, where a loader did not say what it waits for."""
    if ended.seconds > job.config.budget:
        return replace(death, again_note=_too_long(job, ended))
    progress.say("loading the batches again, without workers")
    again = _again(
        job,
        SecondRun(step=None, lines=True, without_workers=True),
        steps=(death.step or 0) + 1,
        silence=job.config.timeout,
    )
    if again.silent_for is None:
        return replace(
            death, again=False, again_note="loaded again without workers, the batches came"
        )
    second = death_of(again)
    if not second.frames:
        return replace(death, again=True)
    return replace(
        death,
        again=True,
        again_note="loaded without workers",
        frames=second.frames,
        known_from=SECOND_RUN,
        call=second.call,
        item=second.item,
    )


def _place(death: DeathFacts) -> tuple[str, int]:
    return death.frames[-1].file, death.frames[-1].line


def _looked_closer(
    job: Job, ended: Ended, report: Report, failure: Failure, step: int | None, progress: Progress
) -> Report:
    """What a fresh process can tell of an exception that the first one could only report."""
    if ended.seconds > job.config.budget:
        return report
    if worker_died(failure) is not None:
        progress.say("loading the batches again, without workers")
        again = _again(
            job, SecondRun(step=None, lines=True, without_workers=True), steps=(step or 0) + 1
        )
        told = None
        raised, _ = failure_noted(again)
        if raised is not None:  # a worker that ends by sys.exit: here it is an exception
            item = (again.trail.words or {}).get("item")
            told = DeathFacts(
                in_worker=True,
                again=True,
                frames=raised.frames,
                item=item,
                call="sys.exit" if raised.type == "SystemExit" else None,
                status=1,
            )
        elif died(again):
            told = replace(death_of(again), in_worker=True, again=True)
        elif again.report is not None:
            told = DeathFacts(in_worker=True, again=False)
        where = next(
            (finding.culprit.location for finding in report.findings if finding.phase == "data"),
            None,
        )
        evidence = Evidence(
            failure=failure,
            failure_step=step,
            steps_run=ended.trail.finished,
            death=told,
            data_site=where,
        )
        return replace(report, findings=diagnose(evidence, job.config))
    if device_is_lost(failure):
        return _without_the_device(job, report, failure, step, progress)
    return report


def _without_the_device(
    job: Job, report: Report, failure: Failure, step: int | None, progress: Progress
) -> Report:
    """The failing batch on the CPU, which names the index; where it passes there, the run again
    with every kernel waited for."""
    batch = report.artifacts.get("batch")
    looks: list[tuple[str, SecondRun, dict[str, str], str]] = []
    if batch is not None:
        looks.append(("running the batch on the CPU", SecondRun(batch=batch), {}, "cpu"))
    if is_cuda(report.run.device):  # of other devices none offers to wait for every kernel
        named = " ".join(f"{key}={value}" for key, value in BLOCKING.items())
        looks.append(
            (f"re-running it with {named}", SecondRun(), dict(BLOCKING), job.config.device)
        )
    for said, again, environment, device in looks:
        progress.say(said)
        ended = _again(job, again, steps=None, environment=environment, device=device)
        found = ended.report.findings if ended.report is not None else ()
        # code that names its devices cannot run on the CPU: that is no finding of the training's
        if found and found[0].severity == "critical" and found[0].name != "device-mismatch":
            first = found[0]
            lost = report.findings[0]
            told = replace(
                first,
                step=step if again.batch else first.step,
                experiments=(
                    *first.experiments,
                    {"name": said, "outcome": "fails there too", "loss": None},
                ),
                evidence=(*first.evidence, ("on the GPU", f"{failure.type}: {failure.first_line}")),
                effects=(*first.effects, (f"{lost.code} {lost.title}", step))
                if lost.code != first.code
                else first.effects,
            )
            return replace(report, findings=(told, *found[1:]))
        if ended.report is not None and not found:
            first = report.findings[0]
            passed = {"name": said, "outcome": "passes", "loss": None}
            first = replace(
                first,
                experiments=(*first.experiments, passed),
                fixes=_PASSED_ON_CPU if again.batch else first.fixes,
            )
            report = replace(report, findings=(first, *report.findings[1:]))
    return report


def _again(
    job: Job,
    again: SecondRun,
    *,
    steps: int | None,
    environment: Mapping[str, str] | None = None,
    device: str | None = None,
    silence: float | None = None,
) -> Ended:
    """The run in a fresh child, without anything that only serves its own report; its files go
    nowhere. It is ended after as many seconds without a sign of life as the budget, or `silence`,
    allows."""
    with tempfile.TemporaryDirectory(prefix="nanodoc-") as folder:
        config = replace(
            without_files(job.config, folder, steps),
            checkpoints=False,
            leak_check=False,
            device=device or job.config.device,
        )
        limit = min(max(job.config.budget, 1.0), silence or math.inf)
        return Child(
            replace(job, config=config, live=False, again=again), Progress(), limit, environment
        ).run()
