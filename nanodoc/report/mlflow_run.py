"""A run in MLflow: the scalars of `history.jsonl`, the verdict and the findings. Needs the `mlflow`
extra."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nanodoc.errors import UsageError, said
from nanodoc.report.machine import render_json
from nanodoc.report.markdown import render_markdown
from nanodoc.report.report import Report
from nanodoc.report.scalars import scalars, steps_of
from nanodoc.report.tracked import settings_of, summary_of

_AT_ONCE = 1000  # metrics of one call: mlflow.utils.validation.MAX_METRICS_PER_BATCH
_LONGEST = 500  # characters of a parameter or tag: mlflow.utils.validation, of its oldest stores
_LONGEST_NAME = 250  # of a metric: mlflow.utils.validation.MAX_ENTITY_KEY_LENGTH
_NO_NAME = re.compile(r"[^\w\-./: ]")  # what mlflow.utils.validation takes in no metric's name


def check_mlflow(experiment: str, *, ask: bool = True) -> None:
    """Raises `UsageError` where MLflow is not installed, or, with `ask`, its store cannot be
    used."""
    if find_spec("mlflow") is None:
        raise UsageError('--mlflow needs MLflow: pip install "nanodoc-torch[mlflow]"')
    if not ask:
        return
    try:
        _experiment(_client(), experiment)
    except Exception as error:  # of any store and its server
        raise UsageError(
            f"--mlflow: cannot use the store ({said(error)[:300]}); set MLFLOW_TRACKING_URI to use "
            "a different one"
        ) from error


def log_to_mlflow(report: Report, history: Path | None, experiment: str) -> str:
    """Logs to a new run of `experiment`; returns what it is called. Raises what MLflow does."""
    client = _client()
    run = client.create_run(_experiment(client, experiment), run_name="nanodoc").info.run_id
    try:
        _log(client, run, report, history)
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run, "FINISHED" if not report.broke else "FAILED")
    return f"MLflow run {run}"


def _log(client: Any, run: str, report: Report, history: Path | None) -> None:
    from mlflow.entities import Metric, Param, RunTag

    params = [Param(key, str(value)[:_LONGEST]) for key, value in settings_of(report).items()]
    tags = [
        RunTag(f"nanodoc.{key}", str(value)[:_LONGEST]) for key, value in summary_of(report).items()
    ]
    client.log_batch(run, params=params, tags=tags)
    metrics = [
        Metric(_NO_NAME.sub("_", tag)[:_LONGEST_NAME], value, 0, step)
        for tag, value, step in (_all_scalars(history) if history is not None else ())
    ]
    for begin in range(0, len(metrics), _AT_ONCE):
        client.log_batch(run, metrics=metrics[begin : begin + _AT_ONCE])
    client.log_text(run, render_json(report), "nanodoc.json")
    client.log_text(run, render_markdown(report), "nanodoc.md")


def _all_scalars(history: Path) -> Iterator[tuple[str, float, int]]:
    for values in steps_of(history):
        yield from scalars(values)


def _client() -> Any:
    import mlflow

    return mlflow.MlflowClient()


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        return str(client.create_experiment(name))
    except Exception:
        found = client.get_experiment_by_name(name)  # another process may have made it meanwhile
        if found is None:
            raise
        return str(found.experiment_id)
