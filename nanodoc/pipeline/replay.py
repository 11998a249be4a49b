"""`nanodoc replay`: a snapshot's step again, with the experiments and fixes of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.config import Config
from nanodoc.differential.differential import Differential, Step
from nanodoc.differential.experiments import Elsewhere
from nanodoc.differential.trial import Budget
from nanodoc.engine.capsule import Keeper
from nanodoc.engine.examination import Examiner
from nanodoc.engine.failure import describe_failure
from nanodoc.engine.replaying import Replayer
from nanodoc.engine.settings import pick_device, seed_everything, with_amp
from nanodoc.engine.snapshot import like, random_state, read_snapshot, restore_into
from nanodoc.engine.step import StepRunner
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.evidence import Evidence, Trip
from nanodoc.pipeline.common import build_watched, report_of, run_info
from nanodoc.probes.gradients import really_nonfinite
from nanodoc.recipe.loader import split_entrypoint
from nanodoc.recipe.recipe import Recipe
from nanodoc.report.model import Report, VitalSigns


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
        recipe, _ = build_watched(named, config)
    except UserCodeError as error:
        info = run_info(named, "replay", config, device, None, 1, 0, "not_run")
        return report_of(info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    restore_into(recipe, content)
    recipe.model.to(device)
    evidence, vitals, differential = _replay_step(recipe, device, amp_dtype, content, step)
    info = run_info(named, "replay", config, device, amp_dtype, 1, 1, evidence.reproduced)
    not_checked = []
    if content.get("torch") not in (None, torch.__version__):
        not_checked.append(("bitwise reproduction", f"the snapshot was written by torch {content['torch']}, this is {torch.__version__}"))
    report = report_of(info, evidence, config, vitals, {"snapshot": str(path)}, not_checked, False)
    return replace(report, findings=differential.treat(report.findings), interrupted=differential.interrupted)


def _replay_step(
    recipe: Recipe, device: torch.device, amp_dtype: torch.dtype | None, content: dict[str, Any], step: int
) -> tuple[Evidence, VitalSigns, Differential]:
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
    step_ = Step(capsule, Elsewhere(), half=amp_dtype == torch.float16)
    differential = Differential(runner, keeper, replayer, step_, Budget(60.0), lambda text: None)
    return differential.examine(evidence), VitalSigns(steps=1, losses=(loss,), grad_norms=(first.grad_norm,)), differential


def _mapping(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def _batches(recipe: Recipe, content: dict[str, Any]) -> list[Any]:
    """The snapshot's batches in the containers the recipe's own data uses."""
    if "batches" not in content:
        return [(content["x"], content["y"]) if "y" in content else content["x"]]
    template = next(iter(recipe.data), None)
    return [like(batch, template) for batch in content["batches"]]


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
