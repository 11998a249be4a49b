"""`--wandb` and `--mlflow`: the history and the findings through their own interfaces, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanodoc.config import Config, load_config
from nanodoc.errors import UsageError
from nanodoc.pipeline.after_run import prepared
from nanodoc.pipeline.run import run_training
from nanodoc.report import mlflow_run
from nanodoc.report.report import Report
from nanodoc.report.terminal import render
from tests.helpers import nanodoc
from tests.report.test_renderers import SICK

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK)
    return run_training("train.py:build", Config(device="cpu", budget=0.0, log_every=1))


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies
def test_mlflow_has_the_history_and_the_report(
    finished: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    config = load_config(None, {"mlflow": "a name of mine"})
    report = prepared(config).report(finished)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("a name of mine")
    (run,) = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [one.value for one in losses] == pytest.approx(list(report.vitals.losses))
    assert run.data.params["entrypoint"] == "train.py:build"
    assert run.data.tags["nanodoc.verdict"] == report.verdict == "critical"
    path = client.download_artifacts(run.info.run_id, "nanodoc.json", str(tmp_path))
    assert json.loads(Path(path).read_text())["findings"][0]["code"] == report.findings[0].code
    assert f"wrote MLflow run {run.info.run_id}: mlflow ui" in " ".join(render(report).split())


def test_a_store_that_cannot_be_used_is_told_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://here")
    with pytest.raises(UsageError, match="MLFLOW_TRACKING_URI"):
        prepared(Config(mlflow="mine"))


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_missing_tracker_is_told_before_the_run(
    tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    config = load_config(None, {tracker: "mine"})
    with pytest.raises(UsageError, match=rf"pip install .nanodoc-torch\[{tracker}\]"):
        prepared(config)


def test_a_tracker_that_fails_costs_its_own_record(
    finished: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = prepared(load_config(None, {"wandb": "mine"}))
    for error in (ValueError("no space"), KeyboardInterrupt()):

        def failing(*arguments: Any, error: BaseException = error) -> str:
            raise error

        monkeypatch.setattr("nanodoc.pipeline.after_run.log_to_wandb", failing)
        report = after.report(finished)
        assert report.findings == finished.findings
        assert report.not_checked[-1][0] == "wandb"


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies
def test_an_experiment_that_another_rank_has_just_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient()
    made = client.create_experiment("mine")
    seen: list[str] = []

    class Late:
        """Does not see the experiment when it is asked first."""

        def get_experiment_by_name(self, name: str) -> Any:
            seen.append(name)
            return client.get_experiment_by_name(name) if len(seen) > 1 else None

        create_experiment = client.create_experiment

    assert mlflow_run._experiment(Late(), "mine") == made


def test_the_trainings_own_run_goes_on(tmp_path: Path) -> None:
    """Its run in the same process, its run id, and what its command line holds."""
    pytest.importorskip("wandb")
    (tmp_path / "train.py").write_text(SICK)
    (tmp_path / "own.py").write_text(
        "import nanodoc, train, wandb\n"
        "run = wandb.init(project='p', mode='offline', settings=wandb.Settings(silent=True))\n"
        "nanodoc.examine(train.build(), wandb='doctor')\n"
        "run.log({'mine': 1})\n"
        "run.finish()\n"
        "print('went on')\n"
    )
    environment = {**os.environ, "WANDB_RUN_ID": "userrun", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "own.py", "--password", "hunter2hunter"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.endswith("went on\n"), done.stderr
    runs = {path.name.rpartition("-")[2]: path for path in tmp_path.rglob("wandb/offline-run-*")}
    assert len(runs) == 2
    (ours,) = (path for name, path in runs.items() if name != "userrun")
    assert b"hunter2" not in b"".join(p.read_bytes() for p in ours.rglob("*") if p.is_file())


def test_wandb_is_written_offline_beside_the_other_files(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    (tmp_path / "train.py").write_text(SICK)
    done = nanodoc(
        *("run", "--wandb", "mine", "--snapshot-dir", "out", "--device", "cpu", "train.py:build"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "wandb:" not in done.stderr
    (run,) = (tmp_path / "out" / "wandb").glob("offline-run-*")
    assert f"wandb sync out/wandb/{run.name}" in " ".join(done.stdout.split())
    (record,) = run.glob("*.wandb")
    assert all(word in record.read_bytes() for word in (b"gradient norm", b"verdict", b"ND301"))
    (table,) = run.glob("files/media/table/findings*.json")
    row = dict(
        zip(*(json.loads(table.read_text())[key] for key in ("columns", "data")), strict=False)
    )
    assert row["severity"][:2] == ["critical", "ND301"]
