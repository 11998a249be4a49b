"""A run in Weights & Biases: the scalars of `history.jsonl`, the verdict and the findings. Needs
the `wandb` extra."""

from __future__ import annotations

import os
import secrets
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanodoc.artifacts import make_folder
from nanodoc.errors import UsageError
from nanodoc.report.report import Report
from nanodoc.report.scalars import scalars, steps_of
from nanodoc.report.tracked import COLUMNS, finding_rows, settings_of, summary_of


def check_wandb() -> None:
    """Raises `UsageError` where wandb is not installed."""
    if find_spec("wandb") is None:
        raise UsageError('--wandb needs wandb: pip install "nanodoc-torch[wandb]"')


def log_to_wandb(report: Report, history: Path | None, project: str, folder: Path) -> str:
    """Logs to a new run of `project`, below `folder` where it is offline; returns the run's folder.
    Raises what wandb does."""
    own = "wandb" not in sys.modules  # else the training may have runs of its own in this process
    import wandb

    make_folder(folder)
    run: Any = wandb.init(
        project=project,
        dir=str(folder),
        # without an account wandb would ask for one
        mode=None if os.environ.get("WANDB_MODE") else "offline",
        job_type="nanodoc",
        config=settings_of(report),
        reinit="create_new",
        # WANDB_RUN_ID is the training's
        id=secrets.token_hex(4),
        resume="never",
        # without the command line of this process, which may hold credentials
        settings=wandb.Settings(silent=True, console="off", x_disable_meta=True),
    )
    try:
        if history is not None:
            for values in steps_of(history):
                run.log({tag: value for tag, value, _ in scalars(values)}, step=values["step"])
        rows = [list(row) for row in finding_rows(report)]
        run.log({"findings": wandb.Table(columns=list(COLUMNS), data=rows)})
        run.summary.update(summary_of(report))
        return str(Path(run.dir).parent)
    finally:
        run.finish()
        if own:
            wandb.teardown()  # ends the process that wandb started
