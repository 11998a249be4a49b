"""`nanodoc run`: entrypoint → recipe → engine → experiments → rules → fixes → report."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import torch

from nanodoc.accelerator import device_before_import, device_of
from nanodoc.config import Config, artifact_folder
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import Evidence
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.loop.engine import Engine
from nanodoc.loop.history import History
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.pipeline.common import (
    build_watched,
    check_module,
    device_name,
    has_left,
    run_info,
)
from nanodoc.pipeline.ranks import before_the_run
from nanodoc.pipeline.rebuilt import can_be_repeated, data_of
from nanodoc.pipeline.reporting import reported, unwatched, without_device_report
from nanodoc.pipeline.run_plan import DEFAULT_STEPS, Run, engine_options
from nanodoc.pipeline.script import run_trainer
from nanodoc.pipeline.second_run import changed_for, load_here
from nanodoc.progress import Progress
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.trainers import TrainerReturned
from nanodoc.replay.batch_source import OneBatch
from nanodoc.report.report import Report
from nanodoc.report.tensorboard import check_tensorboard
from nanodoc.script.launcher import marked_trainers
from nanodoc.script.muted import aloud
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
    loops, began, home = marked_trainers(), time.monotonic(), Path.cwd()
    try:
        recipe, facts = build_watched(entrypoint, config)
    except TrainerReturned as returned:
        return run_trainer(entrypoint, returned, loops, config, progress)
    except UserCodeError as error:
        note_failure(here(), describe_failure(error), None)
        info = run_info(entrypoint, "run", config, device, None, config.steps or 0, 0, "not_run")
        return unwatched(info, Evidence(failure=describe_failure(error)), config)
    took = time.monotonic() - began
    if has_left(home):  # files go where they were asked for
        config = replace(config, snapshot_dir=str(home / artifact_folder(config)))
    return run_recipe(entrypoint, recipe, facts, config, progress, again, took)


def run_recipe(
    entrypoint: str,
    recipe: Recipe,
    facts: BuildFacts,
    config: Config,
    progress: Progress,
    again: SecondRun | None = None,
    took: float = math.inf,
) -> Report:
    """Runs a recipe that was built, in `took` seconds, and returns what was found. Raises
    `UsageError`."""
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
    with aloud():
        history = History(folder)
    artifacts: dict[str, str | None] = {"history": str(history.path), "snapshot": None}
    run = Run(
        *(entrypoint, config, device, amp_dtype, steps, folder, history.path, artifacts),
        rebuilt=(lambda: data_of(entrypoint, config)) if can_be_repeated(took) else None,
    )
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
            return without_device_report(run, outcome)
        return reported(run, engine, outcome, progress, before)
    finally:
        engine.end()


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
