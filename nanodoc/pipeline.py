"""The wiring of the rooms: entrypoint → recipe → engine → evidence → rules → report."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from nanodoc._version import __version__
from nanodoc.config import Config
from nanodoc.differential.trials import Trials
from nanodoc.engine.build_facts import BuildFacts
from nanodoc.engine.building import BuildWatch
from nanodoc.engine.capsule import Keeper
from nanodoc.engine.course import Outcome
from nanodoc.engine.examination import Examiner
from nanodoc.engine.failure import describe_failure
from nanodoc.engine.graph_run import run_graph_check
from nanodoc.engine.history import History
from nanodoc.engine.looks import LookOptions
from nanodoc.engine.loop import Engine
from nanodoc.engine.replaying import Replayer
from nanodoc.engine.settings import pick_device, seed_everything, with_amp
from nanodoc.engine.snapshot import like, random_state, read_snapshot, restore_into, write_snapshot
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.evidence import Evidence, Trip
from nanodoc.probes.gradients import really_nonfinite
from nanodoc.recipe.lines import line_of_key
from nanodoc.recipe.loader import build_recipe, split_entrypoint
from nanodoc.recipe.recipe import Recipe
from nanodoc.report.grad_picture import picture_of
from nanodoc.report.model import Report, RunInfo, VitalSigns
from nanodoc.report.ranking import rank
from nanodoc.rules.registry import claims
from nanodoc.trace.spans import shown_path

DEFAULT_STEPS = 100
Progress = Callable[[int, int, float], None]


def run(entrypoint: str, config: Config, progress: Progress | None = None) -> Report:
    """Runs the training an entrypoint names under watch, and returns what was found.

    Raises `UsageError` for anything unusable; an exception of the user's own code is a finding of the report.
    """
    device = pick_device(config.device)
    if config.seed is not None:
        seed_everything(config.seed)
    try:
        recipe, facts = _build(entrypoint, config)
    except UserCodeError as error:
        info = _info(entrypoint, "run", config, device, None, config.steps or 0, 0, "not_run")
        return _report(info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    steps = config.steps or recipe.max_steps or DEFAULT_STEPS
    _check_module(recipe, config.module)
    if config.abort_after_step is not None:
        steps = min(steps, config.abort_after_step + 1)
    looks = LookOptions(
        steps=config.trace_steps,
        folder=_artifact_folder(config),
        frames=config.frames,
        most_frames=config.max_frames,
        module=config.module or "",
    )
    folder = _artifact_folder(config)
    history = History(folder)
    engine = Engine(
        recipe, device, amp_dtype, steps=steps, history=history, build_facts=facts, looks=looks, leak_check=config.leak_check,
        progress=(lambda step, loss: progress(step, steps, loss)) if progress else None,
    )  # fmt: skip
    try:
        outcome = engine.run()
    finally:
        history.close()
    artifacts: dict[str, str | None] = {"history": str(history.path), "snapshot": None}
    not_checked = list(outcome.notes)
    if outcome.trace_files:
        artifacts["traces"] = ", ".join(outcome.trace_files)
    if outcome.capsule is not None and outcome.evidence.trip is not None:
        try:
            path = write_snapshot(folder, engine.recipe, outcome.capsule, entrypoint, config.as_dict(), {"loss": outcome.evidence.trip.loss, "grad_norm": outcome.evidence.trip.grad_norm, "amp": str(amp_dtype) if amp_dtype else None})  # fmt: skip
            artifacts["snapshot"] = str(path)
        except OSError as error:
            not_checked.append(("snapshot", f"it could not be written: {error}"))
    info = _info(entrypoint, "run", config, device, amp_dtype, steps, outcome.steps_run, outcome.evidence.reproduced)
    amp = outcome.evidence.amp_facts
    vitals = VitalSigns(
        steps=outcome.steps_run, losses=tuple(outcome.losses), grad_norms=tuple(outcome.grad_norms),
        skipped_steps=outcome.skipped, overhead=outcome.overhead,
        scales=tuple(step.scale for step in amp.steps) if amp else (), calibration_skips=amp.calibration if amp else 0,
    )  # fmt: skip
    not_checked += _not_checked(outcome, steps)
    report = _report(info, outcome.evidence, config, vitals, artifacts, not_checked, outcome.interrupted)
    findings = report.findings
    if outcome.start is not None and findings:
        half = amp is not None and amp.dtype == "float16"
        findings = Trials(engine.runner, engine.keeper, engine.replayer, outcome.start, half=half, indices=outcome.indices).on(findings)
    return replace(report, frames=tuple(outcome.frames), findings=findings, amp=amp)


def replay(path: Path, config: Config, entrypoint: str | None = None) -> Report:
    """Re-runs the step a snapshot holds under the tracer and returns the diagnosis. Raises `UsageError`."""
    content = read_snapshot(path)
    named = entrypoint or _trusted_entrypoint(content)
    device = pick_device(config.device)
    # the recipe is built as the run built it: what build() was given travels in the snapshot
    saved = _mapping(content, "config")
    config = replace(config, recipe=config.recipe or saved.get("recipe") or {}, amp=config.amp or saved.get("amp"))
    seed = config.seed if config.seed is not None else saved.get("seed")
    if isinstance(seed, int):
        seed_everything(seed)
    step = int(content.get("step", 0))
    try:
        recipe, _ = _build(named, config)
    except UserCodeError as error:
        info = _info(named, "replay", config, device, None, 1, 0, "not_run")
        return _report(info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    restore_into(recipe, content)
    recipe.model.to(device)
    evidence, vitals, trials = _replay_step(recipe, device, amp_dtype, content, step)
    info = _info(named, "replay", config, device, amp_dtype, 1, 1, evidence.reproduced)
    not_checked = []
    if content.get("torch") not in (None, torch.__version__):
        not_checked.append(("bitwise reproduction", f"the snapshot was written by torch {content['torch']}, this is {torch.__version__}"))
    report = _report(info, evidence, config, vitals, {"snapshot": str(path)}, not_checked, False)
    return replace(report, findings=trials.on(report.findings))


def check_grad_graph(entrypoint: str, config: Config, module: str | None = None) -> Report:
    """Runs steps without ever stepping an optimizer and says which parameters get a gradient. Raises `UsageError`."""
    device = pick_device(config.device)
    if config.seed is not None:
        seed_everything(config.seed)
    steps = config.steps or 1
    try:
        recipe, build = _build(entrypoint, config)
    except UserCodeError as error:
        info = _info(entrypoint, "check-grad-graph", config, device, None, steps, 0, "not_run")
        return _report(info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False)
    _check_module(recipe, module)
    modules = {path: type(m).__name__ for path, m in recipe.model.named_modules()}
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    outcome = run_graph_check(recipe, build, device, amp_dtype, steps)
    info = _info(entrypoint, "check-grad-graph", config, device, amp_dtype, steps, len(outcome.steps), "not_run")
    vitals = VitalSigns(steps=len(outcome.steps))
    report = _report(info, outcome.evidence(recipe, build), config, vitals, {}, outcome.notes, False)
    picture = picture_of(outcome.steps, outcome.merged, outcome.ownership, modules, has_optimizer=bool(recipe.optimizers), below=module)
    return replace(report, graph=picture)


def _check_module(recipe: Recipe, module: str | None) -> None:
    paths = [path for path, _ in recipe.model.named_modules()]
    if module is not None and module not in paths:
        near = get_close_matches(module, paths, 1, cutoff=0)
        raise UsageError(f"the model has no module {module!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _replay_step(
    recipe: Recipe, device: torch.device, amp_dtype: torch.dtype | None, content: dict[str, Any], step: int
) -> tuple[Evidence, VitalSigns, Trials]:
    runner = StepRunner(recipe, device, amp_dtype)
    keeper = Keeper(recipe, device)
    capsule = keeper.take(step, _batches(recipe, content))
    capsule.rng = random_state(content) or capsule.rng
    replayer = Replayer(runner, keeper)
    examiner = Examiner(replayer)
    first = replayer.replay_and_rewind(capsule)
    known = _mapping(content, "run")
    loss = sum(first.losses) / len(first.losses) if first.losses else float("nan")
    named = list(recipe.model.named_parameters())
    sick_now = [name for name, p in named if not bool(torch.isfinite(p).all())]
    failure = describe_failure(first.error) if first.error else None
    unhealthy = bool(first.bad_parameters) or loss - loss != 0 or failure is not None
    told = float(known.get("loss", loss)) if failure is None else None
    examined = examiner.examine(capsule, told, known.get("grad_norm")) if unhealthy else None
    trip = None
    if unhealthy and failure is None:
        trip = Trip(step=step, phase="backward" if loss - loss == 0 else "forward", loss=loss, grad_norm=first.grad_norm, bad_parameters=tuple(first.bad_parameters or really_nonfinite(named)), gradients_finite=not first.bad_parameters)  # fmt: skip
    evidence = Evidence(
        steps_run=1,
        trip=trip,
        births=examined.births if examined else (),
        leaves=examined.leaves if examined else (),
        failure=failure,
        failure_step=step if failure else None,
        reproduced=examined.reproduced if examined else "not_run",
        reproduction_note=("the weights in the snapshot are already non-finite: " + ", ".join(sick_now[:4])) if sick_now else "",
        losses=(loss,),
        grad_norms=(first.grad_norm,),
        amp=str(amp_dtype).removeprefix("torch.") if amp_dtype else None,
        scaler=recipe.scaler is not None,
    )
    trials = Trials(runner, keeper, replayer, capsule, half=amp_dtype == torch.float16)
    return evidence, VitalSigns(steps=1, losses=(loss,), grad_norms=(first.grad_norm,)), trials


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _batches(recipe: Recipe, content: dict[str, Any]) -> list[Any]:
    """The snapshot's batches in the containers the recipe's own data uses."""
    if "batches" not in content:
        return [(content["x"], content["y"]) if "y" in content else content["x"]]
    template = next(iter(recipe.data), None)
    return [like(batch, template) for batch in content["batches"]]


def _build(entrypoint: str, config: Config) -> tuple[Recipe, BuildFacts]:
    watch = BuildWatch()
    with watch:
        recipe = build_recipe(entrypoint, config.recipe)
    if any(isinstance(module, torch.jit.ScriptModule) for module in recipe.model.modules()):
        raise UsageError("the model holds TorchScript modules, which cannot be watched; return the plain module from the recipe")
    path, name = split_entrypoint(entrypoint)
    return recipe, replace(watch.settle(recipe.model), amp_at=line_of_key(path, name, "amp", shown_path(str(path))))


def _trusted_entrypoint(content: dict[str, Any]) -> str:
    """The entrypoint a snapshot names, if it lies below the working folder: a stranger's file must not pick what runs."""
    named = content.get("entrypoint")
    if not isinstance(named, str):
        raise UsageError("this snapshot names no entrypoint; give one with --entrypoint FILE.py:NAME")
    path, _ = split_entrypoint(named)
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise UsageError(f"the snapshot wants to run {named}, which is outside this folder; allow it with --entrypoint {named}")
    if not path.exists():
        raise UsageError(f"the snapshot's recipe {named} is not here; say where it is with --entrypoint FILE.py:NAME")
    return named


def _info(
    entrypoint: str, command: str, config: Config, device: torch.device, amp: torch.dtype | None, requested: int, done: int, reproduced: str
) -> RunInfo:
    return RunInfo(
        entrypoint=entrypoint,
        command=command,
        config=config.as_dict(),
        device=str(device) if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})",
        amp=str(amp).removeprefix("torch.") if amp else None,
        seed=config.seed,
        steps_requested=requested,
        steps_run=done,
        torch=str(torch.__version__),
        python=platform.python_version(),
        reproduced=reproduced,
    )


def _report(
    info: RunInfo, evidence: Evidence, config: Config, vitals: VitalSigns, artifacts: dict[str, str | None],
    not_checked: list[tuple[str, str]], interrupted: bool,
) -> Report:  # fmt: skip
    return Report(
        nanodoc=__version__,
        run=info,
        findings=rank(claims(evidence, config.select, config.ignore)),
        not_checked=tuple(not_checked),
        vitals=vitals,
        artifacts=artifacts,
        interrupted=interrupted,
    )


def _not_checked(outcome: Outcome, steps: int) -> list[tuple[str, str]]:
    found = []
    if outcome.steps_run < steps and outcome.evidence.trip is None and outcome.evidence.failure is None and not outcome.notes:
        found.append(("the remaining steps", f"the run ended after {outcome.steps_run} of {steps}"))
    if outcome.evidence.amp is None:
        found.append(("GradScaler", "amp is off"))
    return found


def _artifact_folder(config: Config) -> Path:
    if config.snapshot_dir is not None:
        return Path(config.snapshot_dir)
    return Path(config.output).parent if config.output is not None else Path(".")
