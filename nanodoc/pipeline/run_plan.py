"""A run as it is planned: its head in the report, and what the engine is asked to watch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nanodoc.config import Config
from nanodoc.examination.making import Source
from nanodoc.facts.asides import AsideFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.pipeline.common import run_info
from nanodoc.report.report import RunInfo
from nanodoc.supervise.launch import Launch
from nanodoc.watchers.requested_steps import LookOptions

DEFAULT_STEPS = 100
DEFAULT_LOG_EVERY = 10  # with --stats


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it was planned, for its report."""

    entrypoint: str
    config: Config
    device: torch.device
    amp_dtype: torch.dtype | None
    steps: int
    folder: Path
    history: Path
    artifacts: dict[str, str | None]
    """What was written, by kind."""
    script: bool = False
    """The training is a script's own, run by itself."""
    launch: Launch | None = None
    """How the script was started; None for a trainer, and for a training that calls nanodoc."""
    data: Callable[[], Source] | None = None
    """What a script's batches come from."""
    asides: Callable[[Callable[[Any], SourceSpan | None]], AsideFacts] | None = None
    """What a script did beside its steps, asked with what tells where a loader was made."""
    rebuilt: Callable[[], contextlib.AbstractContextManager[Source | None]] | None = None
    """Makes the data anew, as the training did."""
    replayable: bool = True
    """The training can be started again: it does not call nanodoc itself."""

    def info(self, steps_run: int, reproduced: str) -> RunInfo:
        """The head of the report."""
        return run_info(
            self.entrypoint,
            "run",
            self.config,
            self.device,
            self.amp_dtype,
            self.steps,
            steps_run,
            reproduced,
        )


def engine_options(config: Config, folder: Path) -> dict[str, Any]:
    """What the engine is asked to watch, as its keywords."""
    return {
        "looks": LookOptions(
            steps=config.trace_steps,
            folder=folder,
            frames=config.frames,
            most_frames=config.max_frames,
            module=config.module or "",
            magnitudes=any(
                form in ("html", "json") for form in (config.output_format, *config.also)
            ),
        ),
        "leak_check": config.leak_check,
        "range_check": config.preflight is not False,
        "budget": config.budget,
        "checkpoints": config.checkpoints,
        "checkpoint_every": config.checkpoint_every,
        "sample_every": config.log_every or (DEFAULT_LOG_EVERY if config.stats else None),
    }
