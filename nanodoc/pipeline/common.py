"""What the commands share: building the recipe under watch, and reports from evidence."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import torch

from nanodoc import accelerator
from nanodoc._version import __version__
from nanodoc.config import Config
from nanodoc.environment.variables import attempt
from nanodoc.errors import UsageError
from nanodoc.facts.evidence import Evidence
from nanodoc.pipeline.diagnose import diagnose
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.build_watch import BuildWatch
from nanodoc.recipe.lines import line_of_key
from nanodoc.recipe.loader import build_recipe
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.target import split_entrypoint
from nanodoc.recipe.trainers import TrainerReturned
from nanodoc.report.report import Report, RunInfo, VitalSigns
from nanodoc.trace.files import USER, absolute, frame_kind, shown_path

_MOST_SOURCES = 2000


def check_module(recipe: Recipe, module: str | None) -> None:
    paths = [path for path, _ in recipe.model.named_modules()]
    if module is not None and module not in paths:
        near = get_close_matches(module, paths, 1, cutoff=0)
        raise UsageError(
            f"the model has no module {module!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        )


def build_watched(entrypoint: str, config: Config) -> tuple[Recipe, BuildFacts]:
    watch = BuildWatch()
    try:
        with watch:
            recipe = build_recipe(entrypoint, config.recipe)
    except TrainerReturned as returned:
        returned.building = watch
        raise
    path, name = split_entrypoint(entrypoint)
    shown = shown_path(str(path))
    facts = watch.settle(recipe.model, recipe.criterion)
    return recipe, replace(
        facts,
        amp_at=line_of_key(path, name, "amp", shown),
        criterion_at=line_of_key(path, name, "criterion", shown),
        data_at=line_of_key(path, name, "data", shown),
    )


def device_name(device: torch.device) -> str:
    name = accelerator.device_name(device)
    return f"{device} ({name})" if name else str(device)


def run_info(
    entrypoint: str,
    command: str,
    config: Config,
    device: torch.device,
    amp: torch.dtype | None,
    requested: int,
    done: int,
    reproduced: str,
) -> RunInfo:
    return RunInfo(
        entrypoint=entrypoint,
        command=command,
        config=config.as_dict(),
        device=device_name(device),
        amp=str(amp).removeprefix("torch.") if amp else None,
        seed=config.seed,
        steps_requested=requested,
        steps_run=done,
        torch=str(torch.__version__),
        python=platform.python_version(),
        reproduced=reproduced,
        attempt=attempt(os.environ),
    )


def report_of(
    info: RunInfo,
    evidence: Evidence,
    config: Config,
    vitals: VitalSigns,
    artifacts: dict[str, str | None],
    not_checked: list[tuple[str, str]],
    interrupted: bool,
) -> Report:
    return Report(
        nanodoc=__version__,
        run=info,
        findings=diagnose(evidence, config),
        not_checked=tuple(not_checked),
        vitals=vitals,
        artifacts=artifacts,
        interrupted=interrupted,
        broke=evidence.failure is not None or evidence.trip is not None,
        sources=own_sources(info.entrypoint),
    )


def has_left(home: Path) -> bool:
    """The training has gone into another folder, or the one that it is in is gone."""
    try:
        return Path.cwd() != home
    except OSError:
        return True


def own_sources(entrypoint: str) -> tuple[str, ...]:
    """The user's own files among the modules that are loaded: those below the working folder or
    the entrypoint's."""
    folders = set()
    with contextlib.suppress(OSError):  # the training may have removed it
        folders.add(os.getcwd() + os.sep)
    file = entrypoint.split(" -- ")[0].rpartition(":")[0] or entrypoint
    if os.path.isfile(file):
        folders.add(os.path.dirname(absolute(file)) + os.sep)
    below = tuple(folders)
    # a module that imports its parts when they are asked for is not to be asked
    files = {getattr(module, "__dict__", {}).get("__file__") for module in [*sys.modules.values()]}
    own = sorted(
        name
        for name in files
        if isinstance(name, str)
        and name.endswith(".py")
        and (name if os.path.isabs(name) else absolute(name)).startswith(below)
        and frame_kind(name) == USER
    )
    return tuple(shown_path(name) for name in own[:_MOST_SOURCES])
