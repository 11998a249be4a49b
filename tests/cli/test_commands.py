"""The commands as a user runs them: what is on stdout, what on stderr, which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import nanodoc, report_of

HEALTHY = """
import torch

def build(config={"lr": 0.1}):
    print("building with", config)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(4)]
    return {"model": model, "criterion": torch.nn.MSELoss(), "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=config["lr"]), "max_steps": 6}

def exploding():
    raise RuntimeError("the disk with the data is gone")

def in_a_step():
    recipe = build()
    def loss_fn(model, batch):
        return helper(model(batch[0]))
    recipe["loss_fn"] = loss_fn
    return recipe

def helper(out):
    return out.view(3, 1000).mean()

def slow():
    import time
    recipe = build()
    def loss_fn(model, batch):
        time.sleep(0.05)
        return model(batch[0]).pow(2).mean()
    recipe["loss_fn"], recipe["max_steps"] = loss_fn, 10000
    return recipe
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEALTHY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["explain", "ND301"],
        ["rules"],
        ["rules", "--output-format", "json"],
        ["demo"],
        ["run", "--help"],
        ["net"],
        ["env", "--help"],
    ],
)
def test_torch_is_not_imported_where_it_is_not_needed(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['nanodoc', *{arguments!r}]\nfrom nanodoc.cli.app import "
        "main\ntry:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\nassert "
        "'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_importing_nanodoc_does_not_import_torch() -> None:
    subprocess.run(
        [
            sys.executable,
            "-c",
            "import nanodoc, sys; nanodoc.Recipe; assert 'torch' not in sys.modules",
        ],
        check=True,
    )


def test_a_healthy_run(tmp_path: Path) -> None:
    done = nanodoc("run", "train.py:build", cwd=tmp_path)
    assert done.returncode == 0
    assert "verdict: nothing found" in done.stdout
    assert "building with" in done.stderr
    assert "building with" not in done.stdout
    lines = [
        json.loads(line)
        for line in (tmp_path / "nanodoc-out/history.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines[1:]] == list(range(6))
    assert set(lines[1]) >= {
        "step",
        "loss",
        "grad_norm",
        "lr",
        "scale",
        "skipped",
        "seconds",
        "samples_per_second",
    }
    assert not list(tmp_path.rglob("*.pt"))


def test_a_foreign_history_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "nanodoc-out").mkdir()
    (tmp_path / "nanodoc-out/history.jsonl").write_text("mine\n")
    nanodoc("run", "train.py:build", cwd=tmp_path)
    assert (tmp_path / "nanodoc-out/history.jsonl").read_text() == "mine\n"
    assert (tmp_path / "nanodoc-out/history-2.jsonl").exists()


def test_json_is_alone_on_stdout_and_complete(tmp_path: Path) -> None:
    done = nanodoc(
        "run",
        "train.py:build",
        "--output-format",
        "json",
        "--steps",
        "2",
        "--seed",
        "3",
        cwd=tmp_path,
    )
    report = report_of(done)
    assert report["schema"] == 2
    assert report["verdict"] == "nothing found"
    assert report["run"]["steps_run"] == 2
    assert report["run"]["seed"] == 3
    assert report["findings"] == []
    assert set(report) >= {
        "schema",
        "nanodoc",
        "verdict",
        "run",
        "findings",
        "not_checked",
        "vitals",
        "artifacts",
    }


def test_yaml_and_flags_share_a_schema(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "steps: 3\noutput-format: json\nsnapshot_dir: out\nrecipe:\n  lr: 0.5\n"
    )
    done = nanodoc("run", "train.py:build", "--config", "c.yaml", "--steps", "4", cwd=tmp_path)
    assert report_of(done)["run"]["steps_run"] == 4
    assert (tmp_path / "out" / "history.jsonl").exists()
    assert "building with {'lr': 0.5}" in done.stderr


@pytest.mark.parametrize("output_format", ["full", "concise", "json", "github"])
@pytest.mark.parametrize(("name", "phase"), [("exploding", "setup"), ("in_a_step", "forward")])
def test_an_exception_of_the_users_is_a_finding_in_every_format(
    output_format: str, name: str, phase: str, tmp_path: Path
) -> None:
    done = nanodoc("run", f"train.py:{name}", "--output-format", output_format, cwd=tmp_path)
    assert done.returncode == 1
    assert ("ND709" if name == "exploding" else "ND705") in done.stdout
    assert "Traceback" not in done.stderr
    if output_format == "json":
        (finding,) = report_of(done)["findings"]
        assert finding["phase"] == phase
        source = HEALTHY.splitlines()[finding["culprit"]["location"]["line"] - 1]
        assert ("raise RuntimeError" if name == "exploding" else "out.view(3, 1000)") in source
        frames = [e for e in finding["evidence"] if e["label"].startswith("frame")]
        assert all("train.py" in e["value"] for e in frames)
        assert report_of(done)["verdict"] == "failed"


def test_an_error_of_nanodocs_own_is_exit_3_and_one_line(tmp_path: Path) -> None:
    code = (
        "import sys, nanodoc.pipeline.run as p; sys.argv = ['nanodoc', 'run', 'train.py:build', "
        "'--in-process']\ndef broken(*a, **k): raise ZeroDivisionError('oops')\np.run_training = "
        "broken\nfrom nanodoc.cli.app import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 3
    assert "internal error: ZeroDivisionError: oops" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_fail_on_and_ignore(tmp_path: Path) -> None:
    assert nanodoc("run", "train.py:exploding", "--fail-on", "never", cwd=tmp_path).returncode == 0
    assert (
        nanodoc("run", "train.py:exploding", "--ignore", "user-exception", cwd=tmp_path).returncode
        == 0
    )
    assert nanodoc("run", "train.py:exploding", "--select", "ND3", cwd=tmp_path).returncode == 0


def test_the_report_goes_to_a_file(tmp_path: Path) -> None:
    done = nanodoc(
        "run",
        "train.py:build",
        "--output",
        "reports/r.json",
        "--output-format",
        "json",
        cwd=tmp_path,
    )
    assert done.stdout == ""
    assert json.loads((tmp_path / "reports" / "r.json").read_text())["verdict"] == "nothing found"
    assert (tmp_path / "nanodoc-out" / "history.jsonl").exists()


def test_trace_steps_write_the_ops(tmp_path: Path) -> None:
    done = nanodoc("run", "train.py:build", "--trace-steps", "1,3", cwd=tmp_path)
    assert done.returncode == 0
    ops = [
        json.loads(line)
        for line in (tmp_path / "nanodoc-out/trace-step3.jsonl").read_text().splitlines()
    ]
    assert any(op["op"].startswith("aten.mse_loss") for op in ops)
    assert (tmp_path / "nanodoc-out/trace-step1.jsonl").exists()


def test_the_first_interrupt_prints_a_partial_report(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "nanodoc", "run", "train.py:slow", "--output-format", "json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    history = tmp_path / "nanodoc-out/history.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        history.exists() and len(history.read_text().splitlines()) > 3
    ):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["interrupted"] is True
    assert 0 < report["run"]["steps_run"] < 10000


def test_the_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    source = (
        HEALTHY + "\ndef stuck():\n    import time\n    recipe = build()\n    def loss_fn(model, "
        "batch):\n        open('started', 'w').close()\n        time.sleep(600)\n    "
        "recipe['loss_fn'] = loss_fn\n    return recipe\n"
    )
    (tmp_path / "train.py").write_text(source)
    process = subprocess.Popen(
        [sys.executable, "-m", "nanodoc", "run", "train.py:stuck"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "started").exists():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
