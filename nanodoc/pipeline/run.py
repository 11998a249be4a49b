"""`nanodoc run`: entrypoint → recipe → engine → experiments → rules → fixes → report."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from nanodoc.accelerator import device_before_import, device_of
from nanodoc.config import Config, artifact_folder
from nanodoc.diagnosis.preflight import preflight
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examine.traceback import describe_failure
from nanodoc.experiments.experiments import Elsewhere
from nanodoc.experiments.run import ExperimentRun
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Budget
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure_kinds import device_is_lost
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.loop.engine import Engine
from nanodoc.loop.history import History
from nanodoc.loop.outcome import Outcome
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.pipeline.common import (
    build_watched,
    check_module,
    device_name,
    kept_going,
    report_of,
    run_info,
)
from nanodoc.pipeline.ranks import before_the_run, rank_facts
from nanodoc.pipeline.run_plan import DEFAULT_STEPS, Run, engine_options
from nanodoc.pipeline.second_run import changed_for, load_here, write_batches
from nanodoc.progress import Progress
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.batch_source import OneBatch
from nanodoc.replay.snapshot import write_snapshot
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.report.tensorboard import check_tensorboard, write_tensorboard
from nanodoc.rules.catalogue import failed_check, unchecked
from nanodoc.supervise.job import SecondRun


def run_training(
    entrypoint: str,
    config: Config,
    progress: Progress | None = None,
    again: SecondRun | None = None,
) -> Report:
    """Runs the training an entrypoint names under watch, and returns what was found. `again` where
    it is run a second time for a closer look at how the first ended.

    Raises `UsageError` for anything unusable; an exception of the user's own code is a finding of
    the report.
    """
    progress = progress or Progress()
    if config.tensorboard is not None:
        check_tensorboard(Path(config.tensorboard))
    if config.preflight and config.overfit_batch:
        raise UsageError(
            "--preflight runs one step and --overfit-batch needs many: choose one of them"
        )
    here().at(None, "setup")
    device = device_before_import(config.device)
    if config.seed is not None:
        seed_everything(config.seed)
    try:
        recipe, facts = build_watched(entrypoint, config)
    except UserCodeError as error:
        note_failure(here(), describe_failure(error), None)
        info = run_info(entrypoint, "run", config, device, None, config.steps or 0, 0, "not_run")
        return unwatched(info, Evidence(failure=describe_failure(error)), config)
    device = device_of(recipe.model, config.device)
    here().of_model(
        {id(module): (path, type(module).__name__) for path, module in recipe.model.named_modules()}
    )
    recipe, amp_dtype = _changed(recipe, config, device, again)
    steps = config.steps or recipe.max_steps or DEFAULT_STEPS
    if again is not None and again.without_workers:
        loaded, failure = load_here(recipe, steps)
        info = run_info(entrypoint, "run", config, device, amp_dtype, steps, loaded, "not_run")
        return unwatched(info, Evidence(failure=failure), config)
    check_module(recipe, config.module)
    if config.preflight:
        steps = 1
    if config.abort_after_step is not None:
        steps = min(steps, config.abort_after_step + 1)
    here().plan(steps, device_name(device))
    folder = artifact_folder(config)
    history = History(folder)
    artifacts: dict[str, str | None] = {"history": str(history.path), "snapshot": None}
    run = Run(entrypoint, config, device, amp_dtype, steps, folder, history.path, artifacts)
    return _watched(run, recipe, facts, history, progress, again)


def _watched(
    run: Run,
    recipe: Recipe,
    facts: BuildFacts,
    history: History,
    progress: Progress,
    again: SecondRun | None,
) -> Report:
    """Runs the recipe as planned; the report of how it ended."""
    engine = _engine(run, recipe, facts, history, progress)
    before = before_the_run(recipe)
    try:
        outcome = engine.run()
    except BaseException:
        engine.end()
        raise
    finally:
        history.close()
    try:
        if again is not None and again.lines:
            info = run.info(outcome.steps_run, "not_run")
            seen = Evidence(steps_run=outcome.steps_run)
            return unwatched(info, seen, run.config, interrupted=outcome.interrupted)
        if outcome.device_lost:
            return _without_device(run, outcome)
        return reported(run, engine, outcome, progress, before)
    finally:
        engine.end()


def unwatched(
    info: RunInfo, evidence: Evidence, config: Config, *, interrupted: bool = False
) -> Report:
    """The report of a run that has nothing to show but `evidence`: no vital signs, no files."""
    return report_of(info, evidence, config, VitalSigns(), {}, [], interrupted)


def _changed(
    recipe: Recipe, config: Config, device: torch.device, again: SecondRun | None
) -> tuple[Recipe, torch.dtype | None]:
    """The recipe as it is to be run, and the dtype of autocast."""
    if again is not None:
        recipe = changed_for(recipe, again)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    if config.overfit_batch:
        recipe = replace(recipe, data=OneBatch(recipe.data), accumulate=1)
    return recipe, amp_dtype


def _engine(
    run: Run, recipe: Recipe, facts: BuildFacts, history: History, progress: Progress
) -> Engine:
    """The engine that runs it, which tells `progress` of every step."""
    config, steps = run.config, run.steps

    def told(step: int, loss: float) -> None:
        progress.step(step, steps, loss)
        if progress.live is not None:
            progress.live(step, steps, engine.now())

    engine = Engine(
        recipe,
        run.device,
        run.amp_dtype,
        steps=steps,
        history=history,
        build_facts=facts,
        **engine_options(config, run.folder),
        open_ended=config.steps is None and recipe.max_steps is None,
        progress=told,
    )
    return engine


def reported(
    run: Run,
    engine: Engine,
    outcome: Outcome,
    progress: Progress,
    before: tuple[tuple[str, str], ...],
) -> Report:
    """From how a run ended to its report: experiments, rules, fixes."""
    config, recipe, artifacts = run.config, engine.recipe, run.artifacts
    not_checked = list(outcome.notes)
    if config.tensorboard is not None:
        artifacts["tensorboard"] = str(write_tensorboard(run.history, Path(config.tensorboard)))
    if outcome.trace_files:
        artifacts["traces"] = ", ".join(outcome.trace_files)
    _snapshot(run, recipe, outcome, not_checked)
    differential = _differential(engine, outcome, config, progress)
    evidence = replace(
        outcome.evidence,
        default_length=config.steps is None and recipe.max_steps is None and not run.script,
    )
    if differential is not None:
        with kept_going("experiments", not_checked):
            evidence = differential.examine(evidence)
            evidence = differential.overfit(evidence) if config.overfit_batch else evidence
    info = run.info(outcome.steps_run, evidence.reproduced)
    report = report_of(info, evidence, config, _vitals(outcome), artifacts, [], outcome.interrupted)
    findings, interrupted = report.findings, outcome.interrupted
    if differential is not None:
        with kept_going("fixes", not_checked):
            findings = differential.treat(findings)
        interrupted = interrupted or differential.interrupted
        not_checked += differential.notes
    not_checked += _not_checked(outcome, run.steps)
    not_checked += unchecked(outcome.evidence, config.select, config.ignore)
    report = replace(
        report,
        findings=findings,
        frames=tuple(outcome.frames),
        stats=evidence.stats if config.stats else None,
        warnings=evidence.loop.warnings if evidence.loop is not None else (),
        preflight=preflight(evidence, findings, failed_check) if config.preflight else (),
        overfit=evidence.overfit if config.overfit_batch else None,
        of_rank=rank_facts(recipe, outcome, evidence, before),
        amp=evidence.amp_facts,
        not_checked=tuple(not_checked),
        interrupted=interrupted,
    )
    return write_patch(report, run.folder) if config.fix else report


def _without_device(run: Run, outcome: Outcome) -> Report:
    """The report where the device answers nothing any more; the batch, which never left the host,
    is written down for a look elsewhere."""
    artifacts = run.artifacts | {"batch": None}
    failure = outcome.evidence.failure
    lost = failure is not None and device_is_lost(failure)
    why = (
        "the device answers nothing more after the first such error"
        if lost
        else "running the step again would lose the device"
    )
    notes = [("everything that is looked at when a run is over", why)]
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


def _snapshot(
    run: Run, recipe: Recipe, outcome: Outcome, not_checked: list[tuple[str, str]]
) -> None:
    """Writes the step that tripped to disk."""
    trip = outcome.evidence.trip
    if outcome.capsule is None or trip is None:
        return
    if run.script:
        not_checked.append(("snapshot", "a script's step is not written down yet"))
        return
    told = {
        "loss": trip.loss,
        "grad_norm": trip.grad_norm,
        "amp": str(run.amp_dtype) if run.amp_dtype else None,
    }
    try:
        path = write_snapshot(
            run.folder,
            recipe,
            outcome.capsule,
            run.entrypoint,
            run.config.as_dict(),
            told,
            outcome.indices,
        )
        run.artifacts["snapshot"] = str(path)
    except OSError as error:
        not_checked.append(("snapshot", f"it could not be written: {error}"))


def _differential(
    engine: Engine, outcome: Outcome, config: Config, progress: Progress
) -> ExperimentRun | None:
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
    )
    return ExperimentRun(
        engine.runner, engine.keeper, engine.replayer, step, Budget(config.budget), progress.say
    )


def _vitals(outcome: Outcome) -> VitalSigns:
    amp, stats, data = outcome.evidence.amp_facts, outcome.evidence.stats, outcome.evidence.data
    return VitalSigns(
        steps=outcome.steps_run,
        losses=tuple(outcome.losses),
        grad_norms=tuple(outcome.grad_norms),
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
    if outcome.evidence.amp is None:
        found.append(("GradScaler", "amp is off"))
    return found
