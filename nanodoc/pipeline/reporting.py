"""From how a run ended to its report: experiments, rules, fixes, files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from nanodoc.config import Config
from nanodoc.diagnosis.preflight import preflight
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import device_is_lost
from nanodoc.facts.learning import learning_of
from nanodoc.facts.ranks import RankAtStart
from nanodoc.looks.scheduler import Stage
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.shared_run import SharedRun
from nanodoc.loop.watched_run import WatchedRun
from nanodoc.pipeline.common import report_of
from nanodoc.pipeline.data_looks import DataLooks
from nanodoc.pipeline.ranks import rank_facts
from nanodoc.pipeline.run_plan import Run
from nanodoc.pipeline.run_snapshot import write_step
from nanodoc.pipeline.second_run import write_batches
from nanodoc.pipeline.users_line import at_users_lines
from nanodoc.progress import Progress
from nanodoc.recipe.whole_data import with_whole_data
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.report.tensorboard import write_tensorboard
from nanodoc.rules.catalogue import checked, failed_check, unchecked, unjudged
from nanodoc.script.muted import aloud
from nanodoc.watchers.sample_dimension import drawn_by


def unwatched(
    info: RunInfo, evidence: Evidence, config: Config, *, interrupted: bool = False
) -> Report:
    """The report of a run that has nothing to show but `evidence`: no vital signs, no files."""
    return report_of(info, evidence, config, VitalSigns(), {}, [], interrupted)


@aloud()
def reported(
    run: Run,
    engine: SharedRun,
    outcome: Outcome,
    progress: Progress,
    before: RankAtStart | None,
) -> Report:
    """From how a run ended to its report: experiments, rules, fixes."""
    config, recipe, artifacts = run.config, engine.recipe, run.artifacts
    not_checked = list(outcome.notes)
    if config.tensorboard is not None:
        artifacts["tensorboard"] = str(write_tensorboard(run.history, Path(config.tensorboard)))
    if outcome.trace_files:
        artifacts["traces"] = ", ".join(outcome.trace_files)
    write_step(run, engine, outcome, before, not_checked)
    looks, differential = engine.looks, _differential(engine, outcome, progress)
    data = DataLooks(run, engine, _with_length(run, engine, outcome), progress)
    if not outcome.interrupted:
        data.register()
    looks.run(Stage.DATA)
    evidence = data.evidence
    if differential is not None:
        with looks.guarded("experiments"):
            evidence = differential.examine(evidence)
            evidence = differential.overfit(evidence) if config.overfit_batch else evidence
    if not outcome.interrupted:
        evidence = data.with_far_line(evidence)
    info = run.info(outcome.steps_run, evidence.reproduced)
    report = report_of(info, evidence, config, _vitals(outcome), artifacts, [], outcome.interrupted)
    findings = report.findings
    if differential is not None:
        with looks.guarded("fixes"):
            findings = differential.treat(findings)
    interrupted = outcome.interrupted or looks.interrupted
    not_checked += looks.not_checked()
    findings = at_users_lines(findings, engine.build, evidence.births)
    findings = with_whole_data(findings, getattr(drawn_by(recipe), "dataset", None))
    not_checked += _not_checked(outcome, run.steps)
    left = unjudged(outcome.evidence, config.select, config.ignore)
    not_checked += unchecked(left)
    report = replace(
        report,
        findings=findings,
        frames=tuple(outcome.frames),
        magnitudes=outcome.magnitudes,
        stats=evidence.stats if config.stats else None,
        warnings=evidence.loop.warnings if evidence.loop is not None else (),
        preflight=preflight(evidence, findings, failed_check) if config.preflight else (),
        overfit=evidence.overfit if config.overfit_batch else None,
        of_rank=rank_facts(recipe, outcome, evidence, before),
        amp=evidence.amp_facts,
        learning=learning_of(evidence),
        checked=(*checked(evidence, config.select, config.ignore), *looks.asked()),
        not_checked=tuple(not_checked),
        unjudged=left,
        looked=looks.used,
        interrupted=interrupted,
        whole=not interrupted and not report.broke and outcome.steps_run > 0,
    )
    return write_patch(report, run.folder) if config.fix else report


def _with_length(run: Run, engine: WatchedRun, outcome: Outcome) -> Evidence:
    """The outcome's evidence, with who said how many steps there were."""
    config, recipe = run.config, engine.recipe
    own = run.script or recipe.max_steps is not None
    cut = outcome.interrupted or outcome.evidence.trip or outcome.evidence.failure
    return replace(
        outcome.evidence,
        own_length=own and config.steps is None and not cut,
        cut_short=run.script and bool(config.steps is not None or cut),
        default_length=not own and config.steps is None,
        asides=run.asides(engine.build.made_for_loader_at) if run.asides is not None else None,
    )


def without_device_report(run: Run, outcome: Outcome) -> Report:
    """The report where the device answers nothing any more; the batch, which never left the host,
    is written down for a look elsewhere."""
    artifacts = run.artifacts | {"batch": None}
    failure = outcome.evidence.failure
    lost = failure is not None and device_is_lost(failure)
    why = (
        "the device no longer responds after such an error"
        if lost
        else "re-running the step would lose the device"
    )
    notes = [("all checks at the end of a run", why)]
    if outcome.capsule is not None:
        try:
            artifacts["batch"] = str(
                write_batches(run.folder, outcome.capsule.step, outcome.capsule.batches)
            )
        except OSError as error:
            notes.append(("the batch on the CPU", f"it could not be written: {error}"))
    return report_of(
        run.info(outcome.steps_run, "not_run"),
        outcome.evidence,
        run.config,
        VitalSigns(steps=outcome.steps_run, losses=tuple(outcome.losses)),
        artifacts,
        notes,
        False,
    )


def _differential(engine: WatchedRun, outcome: Outcome, progress: Progress) -> ExperimentRun | None:
    """What experiments need; None where there is no step to make them on, or the user has
    interrupted."""
    capsule = outcome.start
    if capsule is None or outcome.interrupted:
        return None
    checkpoints = engine.checkpoints
    elsewhere = Elsewhere(
        other=lambda: engine.another(capsule),
        earlier=checkpoints.before(capsule.step),
        why_none=f"there is no checkpoint of step 0: {checkpoints.note}"
        if checkpoints.note
        else "",
    )
    amp = outcome.evidence.amp_facts
    step = Step(
        capsule,
        elsewhere,
        checkpoints,
        half=amp is not None and amp.dtype == "float16",
        indices=outcome.indices,
        initialised_at=engine.build.initialised_at,
        frozen_at=engine.build.frozen_fresh_at,
    )
    return ExperimentRun(
        engine.runner,
        engine.keeper,
        engine.replayer,
        step,
        engine.looks,
        progress.say,
    )


def _vitals(outcome: Outcome) -> VitalSigns:
    amp, stats, data = outcome.evidence.amp_facts, outcome.evidence.stats, outcome.evidence.data
    loop = outcome.evidence.loop
    return VitalSigns(
        steps=outcome.steps_run,
        losses=tuple(outcome.losses),
        grad_norms=tuple(outcome.grad_norms),
        clip_norms=loop.clip_norms if loop is not None else (),
        optimizer_steps=loop.optimizer_steps if loop is not None else None,
        skipped_steps=outcome.skipped,
        overhead=outcome.overhead,
        rates=tuple(max(rates) for rates in stats.rates if rates) if stats is not None else (),
        update_ratios=tuple(math.hypot(*ratios) for _, ratios in stats.group_ratios if any(ratios))
        if stats is not None
        else (),
        load_share=data.load_share if data is not None else None,
        samples_per_second=outcome.samples_per_second,
        peak_memory=stats.peak_memory if stats is not None else None,
        scales=tuple(step.scale for step in amp.steps) if amp else (),
        calibration_skips=amp.calibration if amp else 0,
    )


def _not_checked(outcome: Outcome, steps: int) -> list[tuple[str, str]]:
    found = []
    if (
        outcome.steps_run < steps
        and outcome.evidence.trip is None
        and outcome.evidence.failure is None
        and not outcome.notes
    ):
        found.append(("the remaining steps", f"the run ended after {outcome.steps_run} of {steps}"))
    if outcome.checkpoints is not None and outcome.checkpoints.note:
        found.append(("earlier weights", outcome.checkpoints.note))
    return found
