"""`nanodoc replay`: a snapshot's step again, with changes, experiments and fixes of its own."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.accelerator import device_before_import, device_of
from nanodoc.config import Config, artifact_folder
from nanodoc.errors import UsageError, UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.evidence import Evidence
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.pipeline.common import build_watched, report_of, run_info
from nanodoc.pipeline.replay_options import ReplayOptions, check
from nanodoc.pipeline.replayed_step import ReplayedStep, report_of_replay
from nanodoc.pipeline.replayed_together import report_together
from nanodoc.pipeline.script_replay import replay_script
from nanodoc.pipeline.snapshot_content import mapping_of, trusted_entrypoint
from nanodoc.progress import Progress
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.group_of_one import only_rank
from nanodoc.replay.local_collectives import LocalCollectives
from nanodoc.replay.shards import read_shards
from nanodoc.replay.shared_index import INDEX, is_part, part_of, read_index
from nanodoc.replay.snapshot import read_snapshot
from nanodoc.report.fixes import write_patch
from nanodoc.report.report import Report, VitalSigns


def replay_snapshot(
    path: Path,
    config: Config,
    entrypoint: str | None = None,
    options: ReplayOptions | None = None,
    progress: Progress | None = None,
) -> Report:
    """Re-runs the step a snapshot holds under the tracer and returns the diagnosis. Raises
    `UsageError`."""
    options, progress = options or ReplayOptions(), progress or Progress()
    check(options)
    path = _own_part(path, options)
    content = read_snapshot(path)
    with only_rank() if _is_of_a_rank(content) else contextlib.nullcontext():
        return _replayed_as_told(path, content, config, entrypoint, options, progress)


def _own_part(path: Path, options: ReplayOptions) -> Path:
    """What this process replays of a sharded step; another snapshot is replayed as it is. Raises
    `UsageError`."""
    if path.is_dir() and options.together:
        return part_of(path, int(os.environ["RANK"]))
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and not (is_part(path) and (folder / INDEX).is_file()):
        return path
    index = read_index(folder)
    if not index.apart:
        raise UsageError(
            f"{folder} is of a FullyShardedDataParallel, which one rank cannot run alone: "
            f"nanodoc replay {folder} --nproc {index.ranks}"
        )
    return part_of(folder, index.first) if path.is_dir() else path


def _is_of_a_rank(content: dict[str, Any]) -> bool:
    """A rank of a process group wrote it."""
    return mapping_of(content, "run").get("ranks") is not None


def _replayed_as_told(
    path: Path,
    content: dict[str, Any],
    config: Config,
    entrypoint: str | None,
    options: ReplayOptions,
    progress: Progress,
) -> Report:
    # the recipe is built as the run built it: what build() was given travels in the snapshot
    saved = mapping_of(content, "config")
    config = replace(config, recipe=config.recipe or saved.get("recipe") or {})
    seed = config.seed if config.seed is not None else saved.get("seed")
    if isinstance(seed, int):
        seed_everything(seed)
    if content.get("script") is not None:
        report = replay_script(path, content, config, entrypoint, options, progress)
        return write_patch(report, artifact_folder(config)) if config.fix else report
    named = entrypoint or trusted_entrypoint(content)
    device = device_before_import(config.device)
    amp = "off" if options.dtype is not None else config.amp or saved.get("amp")
    config = replace(config, amp=amp)
    try:
        recipe, _ = build_watched(named, config)
    except UserCodeError as error:
        info = run_info(named, "replay", config, device, None, 1, 0, "not_run")
        return report_of(
            info, Evidence(failure=describe_failure(error)), config, VitalSigns(), {}, [], False
        )
    device = device_of(recipe.model, config.device)
    default = torch.get_default_dtype()
    try:
        return _replayed(recipe, device, content, path, named, config, options, progress)
    finally:
        torch.set_default_dtype(default)  # --dtype float64 changes it


def _replayed(
    recipe: Recipe,
    device: torch.device,
    content: dict[str, Any],
    path: Path,
    named: str,
    config: Config,
    options: ReplayOptions,
    progress: Progress,
) -> Report:
    if mapping_of(content, "run").get("sharded"):
        content = read_shards(path.parent, recipe, content)
    if options.together:
        return report_together(recipe, device, content, path, named, config)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    with LocalCollectives(recipe).while_inside():
        again = ReplayedStep(recipe, device, amp_dtype, content, options, progress, config)
        report = report_of_replay(again, path, named, config)
        if options.debug:
            again.debug()
    return write_patch(report, artifact_folder(config)) if config.fix else report
