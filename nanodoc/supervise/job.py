"""What the parent asks the child to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nanodoc.config import Config
from nanodoc.facts.untraced import Untraced
from nanodoc.supervise.launch import Launch


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondRun:
    """A run of the same training in a fresh process, to see more of how the first one ended."""

    step: int | None = None
    """From this step on every line of the user's is noted down; None: from the start."""
    lines: bool = False
    without_workers: bool = False
    """Batches are loaded by the training process itself."""
    batch: str | None = None
    """A file with the batch to run, as the only step."""
    muted: bool = False
    """It prints nothing, and writes and starts nothing: the first run has done so."""
    trace: Untraced | None = None
    """The step that it is to trace. It ends behind it, or where it comes to other losses."""


def without_files(config: Config, folder: str, steps: int | None) -> Config:
    """The configuration of a second run, without anything that only serves its own report; files
    that it needs go to `folder`."""
    return replace(
        config,
        steps=steps or config.steps,
        frames=False,
        trace_steps=(),
        fix=False,
        stats=False,
        tensorboard=None,
        live=False,
        snapshot_dir=folder,
        output=None,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """What a process that a script starts to train in is watched by."""

    entrypoint: str
    config: Config
    root: str
    """Modules below this folder are the script's own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One command. `target` is the entrypoint, or the snapshot of a replay; `options` are the
    command's own."""

    command: str
    """"run", "check-grad-graph" or "replay"."""
    target: str
    config: Config
    options: Mapping[str, Any] = field(default_factory=dict)
    live: bool = False
    """Somebody watches the vital signs."""
    again: SecondRun | None = None
    launch: Launch | None = None
    """The script to run, where it is no recipe: stdout is its own."""
    alone: bool = True
    """No other rank takes part, and no script that may leave things behind: the run can be made
    again."""
