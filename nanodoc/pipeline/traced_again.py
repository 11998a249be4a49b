"""The sick step of a script that could not be run again where it ran: a second, muted run of the
script, up to that step, which is traced while it runs there."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from nanodoc.config import artifact_folder
from nanodoc.diagnosis.finding import Finding
from nanodoc.facts.evidence import EXPERIMENTS
from nanodoc.facts.untraced import NOT_REPRODUCED, Untraced
from nanodoc.looks.scheduler import Look, Looks, Place, Stage
from nanodoc.pipeline.one_process_run import CACHES
from nanodoc.progress import Progress
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report
from nanodoc.supervise.job import Job, SecondRun, without_files
from nanodoc.supervise.landlock import can_be_kept_from_connecting
from nanodoc.supervise.parent import Child, Ended

_SHARE = 1 / 3
"""Of the time that is left, for what the second run examines."""
_OFFLINE = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
"""What is sent to nobody, and is not to raise for it."""


def traced_again(job: Job, ended: Ended, report: Report, progress: Progress) -> Report:
    """The report of a script, with what a second run of it shows of the step that ended the first
    one, where `report` knows no cause. It takes no longer than what is left of the budget. `ended`:
    how the first run ended."""
    sought = report.untraced
    if sought is None or report.interrupted or job.launch is None:
        return report
    looks, found = Looks(job.config.budget, spent=report.looked), [report]
    name = _name(sought)

    def look(place: Place) -> None:
        progress.say(f"running the script once more, muted, to trace step {sought.step} …")
        found[0] = _with(job, report, sought, _run(job, sought, place.left))

    looks.add(
        Look(
            name=name,
            group=name,
            stage=Stage.LAST_STEPS,
            likely=0.5,  # half of the scripts set their seeds and write to nothing they need
            runs=0,
            seconds=max(ended.seconds - report.looked, 0.0),
            needs=lambda: _hindered(sought),
            work=look,
        )
    )
    looks.run()
    return replace(
        found[0],
        untraced=None,
        not_checked=(*found[0].not_checked, *looks.not_checked()),
        interrupted=found[0].interrupted or looks.interrupted,
    )


def _hindered(sought: Untraced) -> str:
    """Why it can't be done here; "" where it can."""
    if not sought.known:
        return "no loss before it tells whether a second run of the script is the same"
    if sought.sends_by:
        return f"it uses {sought.sends_by}, which could send once more what the first run has sent"
    if not can_be_kept_from_connecting():
        return "this system cannot stop a second run of the script from writing and sending"
    return ""


def _run(job: Job, sought: Untraced, longest: float) -> Ended:
    with tempfile.TemporaryDirectory(prefix="nanodoc-") as folder:
        config = replace(
            without_files(job.config, folder, sought.steps),
            trace_steps=(sought.step,),
            checkpoints=False,
            leak_check=False,
            budget=longest * _SHARE,
        )
        again = SecondRun(muted=True, trace=sought)
        return Child(
            replace(job, config=config, live=False, again=again),
            Progress(),
            None,
            {**_OFFLINE, **dict.fromkeys(CACHES, folder)},
            watch=lambda trail, crumbs: None,  # told to end, it ends at once
            longest=longest,
        ).run()


def _with(job: Job, report: Report, sought: Untraced, ended: Ended) -> Report:
    told = ended.report
    if ended.interrupted or (told is not None and told.interrupted):
        return replace(_noted(report, sought, "interrupted"), interrupted=True)
    if told is None:
        return _noted(report, sought, _why_not(ended))
    losses = told.vitals.losses
    if (parted := sought.parted_at(losses[: sought.step])) is not None:
        once, then = sought.losses[parted], losses[parted]
        return _noted(
            report,
            sought,
            f"the second run came to another loss in step {parted}: {once:.9g}, then {then:.9g}; "
            "are all seeds set?",
        )
    if len(losses) <= sought.step:
        return _noted(report, sought, f"the second run {_how_it_ended(told)}")
    if not told.broke:
        how = " without torch.compile" if sought.compiled else ""
        return _noted(report, sought, f"in the second run the step was healthy{how}")
    fresh = [finding for finding in told.findings if finding.severity == "critical"]
    if not fresh or any(finding.name == NOT_REPRODUCED for finding in fresh):
        return _noted(report, sought, "traced in a second run, no op could be identified")
    joined = _joined(report, sought, told, fresh)
    return write_patch(joined, artifact_folder(job.config)) if job.config.fix else joined


def _why_not(ended: Ended) -> str:
    """In words for the report."""
    if ended.usage is not None:
        return f"the second run was ended: {ended.usage}"
    if ended.silent_for is not None:
        return "the second run had not come to the step when the --budget was used up"
    why = f": {ended.internal}" if ended.internal else ""
    return f"the process of the second run ended first{why}"


def _how_it_ended(told: Report) -> str:
    first = next(iter(told.findings), None)
    where = f"in step {told.vitals.steps}" if told.vitals.steps else "before its first step"
    if told.broke and first is not None:
        return f"failed {where} ({first.code} {first.title})"
    return f"ended {where}"


def _noted(report: Report, sought: Untraced, why: str) -> Report:
    return replace(report, not_checked=(*report.not_checked, (_name(sought), why)))


def _name(sought: Untraced) -> str:
    return f"a second run that traces step {sought.step}"


def _joined(report: Report, sought: Untraced, told: Report, fresh: Sequence[Finding]) -> Report:
    """`fresh`, which the second run found, in the place of what the first one did not find."""
    pairs = zip(sought.losses, told.vitals.losses, strict=False)
    exact = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)
    same = "bitwise the same" if exact else "the same up to rounding"
    steps = f"{sought.step} steps" if sought.step > 1 else "step"
    eager = ", without torch.compile" if sought.compiled else ""
    how = f"in a second, muted run of the script{eager}; "
    how += f"the losses of the {steps} before it were {same}"
    known = {finding.fingerprint for finding in fresh}
    kept = [one for one in report.findings if one.name != NOT_REPRODUCED]
    place = report.run.step_found
    tried = all(what != EXPERIMENTS for what, _ in told.not_checked)
    return replace(
        report,
        run=replace(
            report.run,
            step_found=f"{place}, step {sought.step} traced in a second run",
            reproduced=told.run.reproduced,
        ),
        findings=(
            *(replace(one, evidence=(*one.evidence, ("traced", how))) for one in fresh),
            *(one for one in kept if one.fingerprint not in known),
        ),
        not_checked=tuple(
            row for row in report.not_checked if not (tried and row[0] == EXPERIMENTS)
        ),
    )
