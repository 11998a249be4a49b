"""What is done with the report of a run before it is shown: what the user has accepted is set
apart, and experiment trackers are given the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanodoc.config import Config, artifact_folder
from nanodoc.errors import said
from nanodoc.pipeline.accepted import check_baselines, with_accepted
from nanodoc.report.mlflow_run import check_mlflow, log_to_mlflow
from nanodoc.report.report import Report
from nanodoc.report.wandb_run import check_wandb, log_to_wandb


def check_after_run(config: Config) -> None:
    """Raises `UsageError` where a baseline or a tracker cannot be used: before a run, not after
    it."""
    check_baselines(config)
    if config.wandb is not None:
        check_wandb()
    if config.mlflow is not None:
        check_mlflow(config.mlflow)


def after_run(report: Report, config: Config) -> Report:
    """The report as it is shown. Raises `UsageError` where a baseline cannot be read any more."""
    report = with_accepted(report, config)
    told = report.artifacts.get("history")
    history = Path(told) if told and Path(told).is_file() else None
    if config.wandb is not None:
        project, folder = config.wandb, artifact_folder(config)
        report = _logged(report, "wandb", lambda: log_to_wandb(report, history, project, folder))
    if config.mlflow is not None:
        experiment = config.mlflow
        report = _logged(report, "mlflow", lambda: log_to_mlflow(report, history, experiment))
    return report


def _logged(report: Report, tracker: str, log: Callable[[], str]) -> Report:
    """A tracker that fails costs its own record and nothing else."""
    try:
        return replace(report, artifacts={**report.artifacts, tracker: log()})
    except Exception as error:
        why = f"it could not be written: {said(error)[:200]}"
        return replace(report, not_checked=(*report.not_checked, (tracker, why)))
