"""The step of a sharded model again by as many processes as it had ranks, of which this is one."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.config import Config
from nanodoc.examination.live_trace import LiveStep, value_of
from nanodoc.facts.evidence import EXPERIMENTS, Evidence, Trip
from nanodoc.heartbeat.trail import here
from nanodoc.loop.outcome import Outcome
from nanodoc.measure.gradients import packed_vitals
from nanodoc.pipeline.common import report_of, run_info
from nanodoc.pipeline.ranks import before_the_run, rank_facts
from nanodoc.pipeline.replayed_step import restore, same
from nanodoc.pipeline.snapshot_content import (
    batches_of,
    first_batches,
    mapping_of,
    random_state_of,
)
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.lockstep import run_together
from nanodoc.replay.snapshot import differences
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper
from nanodoc.report.report import Report, VitalSigns


def report_together(
    recipe: Recipe,
    device: torch.device,
    content: dict[str, Any],
    path: Path,
    named: str,
    config: Config,
) -> Report:
    """What this rank saw of the step. Raises `UsageError`."""
    step = int(content["step"])
    before = before_the_run(recipe)
    drawn = first_batches(recipe)
    restore(recipe, content)
    runner, keeper = StepRunner(recipe, device, None), StateKeeper(recipe, device)
    batches = batches_of(content, drawn[0] if drawn else None, recipe.data)
    capsule = keeper.take(step, batches)
    capsule.rng = random_state_of(content, device) or capsule.rng
    indices = content.get("indices")
    run = run_together(
        runner,
        keeper,
        capsule,
        lambda tracer, losses, bad: (
            LiveStep.of_model(recipe.model, tracer, losses, bad).examined(capsule, indices),
            bad,
        ),
    )
    losses = [value_of(loss) for loss in run.losses]
    norm = packed_vitals([], list(recipe.model.named_parameters())).grad_norm
    loss = losses[-1] if losses else math.nan
    here().finished(0, loss, norm)  # the other ranks' report tells of it, too
    evidence = Evidence(steps_run=1, losses=(loss,), grad_norms=(norm,))
    if run.found is not None:
        examined, bad = run.found
        trip = Trip(
            step=step,
            phase="backward" if math.isfinite(loss) else "forward",
            loss=loss,
            grad_norm=norm,
            bad_parameters=tuple(bad),
            gradients_finite=not bad,
        )
        evidence = replace(
            evidence,
            trip=trip,
            births=examined.births,
            leaves=examined.leaves,
            reproduced=examined.reproduced,
        )
    info = run_info(named, "replay", config, device, None, 1, 1, evidence.reproduced)
    vitals = VitalSigns(steps=1, losses=(loss,), grad_norms=(norm,))
    artifacts: dict[str, str | None] = {"snapshot": str(path.parent)}
    notes = _notes(content, device, losses)
    report = report_of(info, evidence, config, vitals, artifacts, notes, False)
    return replace(report, of_rank=rank_facts(recipe, _outcome(evidence), evidence, before))


def _outcome(evidence: Evidence) -> Outcome:
    """As that of a run of one step."""
    return Outcome(
        evidence=evidence,
        steps_run=1,
        losses=list(evidence.losses),
        grad_norms=list(evidence.grad_norms),
        skipped=0,
        interrupted=False,
        capsule=None,
        overhead=None,
    )


def _notes(
    content: dict[str, Any], device: torch.device, losses: list[float]
) -> list[tuple[str, str]]:
    """What this replay differs in from the step as it was."""
    found = differences(content, str(device))
    told = mapping_of(content, "run").get("loss")
    if told is not None and not any(same(loss, told) for loss in losses):
        here = f"{losses[-1]:.6g}" if losses else "none"
        found.append(f"the loss was {told:.6g} there, {here} here")
    notes = [("bitwise reproduction", "; ".join(found))] if found else []
    why = "made of one rank's part, without --nproc, where the script runs on one"
    return [*notes, (EXPERIMENTS, why)]
