"""What is done with the report of a run before it is shown: what the user has accepted is set
apart, and experiment trackers are given the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from nanodoc.config import Config, artifact_folder
from nanodoc.errors import said
from nanodoc.facts.evidence import EXPERIMENTS
from nanodoc.looks.own_errors import STOPPED
from nanodoc.looks.scheduler import NO_TIME
from nanodoc.pipeline.accepted import Baselines, read_baselines, with_accepted
from nanodoc.report.mlflow_run import check_mlflow, log_to_mlflow
from nanodoc.report.report import Report
from nanodoc.report.wandb_run import check_wandb, log_to_wandb
from nanodoc.rules.catalogue import MEASURED
from nanodoc.trace.files import shown_path


@dataclass(frozen=True, kw_only=True, slots=True)
class AfterRun:
    """What was made ready before the run."""

    config: Config
    baselines: Baselines
    folder: Path
    """Where files go, whole: the training may change the working folder."""

    def report(self, found: Report) -> Report:
        """The report as it is shown. Whatever goes wrong is told in it."""
        config = self.config
        report = with_accepted(with_joined_reasons(found), config, self.baselines)
        told = report.artifacts.get("history")
        history = Path(told) if told and Path(told).is_file() else None
        if config.wandb is not None:
            project = config.wandb
            report = _logged(
                report,
                "wandb",
                lambda: shown_path(log_to_wandb(report, history, project, self.folder)),
            )
        if config.mlflow is not None:
            experiment = config.mlflow
            report = _logged(report, "mlflow", lambda: log_to_mlflow(report, history, experiment))
        return report


def with_joined_reasons(report: Report) -> Report:
    """The report with what was not checked, each once. Where no step could be re-run, or the run
    ended in a failure, that one reason stands for all that was not measured."""
    each = dict.fromkeys(report.not_checked)
    unmeasured = {(told["group"], told["missing"]) for told in MEASURED.values()}
    missing = [note for note in each if note in unmeasured]
    # what ends one look says nothing of the others
    unable = [note for note in each if not note[1].startswith((NO_TIME, STOPPED))]
    first = [(what, why) for what, why in unable if what == EXPERIMENTS][:1]
    why = first[0][1] if first else "the run ended in the failure above" if report.broke else ""
    if not (missing and why):
        return replace(report, not_checked=tuple(each))
    joined = ", ".join(what for what, _ in (*first, *missing))
    rest = (note for note in each if note not in (*first, *missing))
    return replace(report, not_checked=((joined, why), *rest))


def prepared(config: Config, *, first: bool = True) -> AfterRun:
    """Raises `UsageError` where a baseline or a tracker cannot be used: before a run, not after
    it. `first`: of several ranks, the one that speaks to trackers beforehand."""
    baselines = read_baselines(config)
    if config.wandb is not None:
        check_wandb()
    if config.mlflow is not None:
        check_mlflow(config.mlflow, ask=first)
    return AfterRun(config=config, baselines=baselines, folder=artifact_folder(config).absolute())


def _logged(report: Report, tracker: str, log: Callable[[], str]) -> Report:
    """A tracker that fails, or takes so long that it is interrupted, costs its own record and
    nothing else."""
    try:
        return replace(report, artifacts={**report.artifacts, tracker: log()})
    except (Exception, KeyboardInterrupt) as error:
        why = said(error)[:200] or type(error).__name__
        return replace(
            report,
            not_checked=(*report.not_checked, (tracker, f"it could not be written: {why}")),
        )
