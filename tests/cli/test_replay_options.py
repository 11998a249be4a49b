"""`nanodoc replay` with a step changed: samples, settings, dtype, one experiment, the smallest
batch, the debugger."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nanodoc.config import Config
from nanodoc.pipeline.replay import replay_snapshot
from nanodoc.pipeline.replay_options import ReplayOptions
from nanodoc.report.terminal import render
from tests.helpers import nanodoc, report_of

TRAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(3, 4, bias=False), nn.Dropout(0.5)
        self.scale = 1.0
    def forward(self, x):
        power = self.linear(x).pow(2).sum(1) * self.scale
        return self.drop(torch.sqrt(power))

def build():
    torch.manual_seed(0)
    model = Net()
    rows = torch.randn(24, 3)
    rows[19] = 0.0
    data = torch.utils.data.DataLoader(rows, batch_size=8)
    return {"model": model, "loss_fn": lambda m, b: m(b).mean(), "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 3}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(TRAIN)
    report = report_of(nanodoc("run", "train.py:build", "--output-format", "json", cwd=folder))
    assert report["artifacts"]["snapshot"] == "nanodoc-out/nanodoc-step2.pt"
    assert report["findings"][0]["culprit"]["dataset_indices"] == [19]
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nanodoc-out").mkdir()
    for name in ("train.py", "nanodoc-out/nanodoc-step2.pt"):
        shutil.copy(made / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(
    folder: Path, *options: str, snapshot: str = "nanodoc-out/nanodoc-step2.pt"
) -> subprocess.CompletedProcess[str]:
    """The command."""
    return nanodoc("replay", snapshot, "--output-format", "json", *options, cwd=folder)


def replay(
    folder: Path, *options: str, snapshot: str = "nanodoc-out/nanodoc-step2.pt"
) -> dict[str, Any]:
    """The report of the command."""
    return report_of(asked(folder, *options, snapshot=snapshot))


def test_the_same_experiments_as_in_the_run(folder: Path) -> None:
    again = replay(folder)
    assert again["run"]["reproduced"] == "bitwise"
    rows = {row["name"]: row["outcome"] for row in again["findings"][0]["experiments"]}
    assert rows["another batch (the first of the data that is another one)"] == "passes"
    assert rows["the weights that build() gives"] == "fails too"
    assert rows["sample 3 alone"] == "fails"
    assert again["findings"][0]["culprit"]["dataset_indices"] == [19]


def test_some_samples_only(folder: Path) -> None:
    assert replay(folder, "--samples", "0,1,2")["verdict"] == "nothing found"
    guilty = replay(folder, "--samples", "2,3")
    assert guilty["findings"][0]["culprit"]["samples"] == [1]
    assert guilty["findings"][0]["culprit"]["dataset_indices"] == [19]


def test_another_learning_rate(folder: Path) -> None:
    (row,) = replay(folder, "--samples", "0,1", "--set", "optimizer.lr=0")["tried"]
    assert row["name"] == "this batch once more after a step with optimizer.lr=0"
    assert row["outcome"] == "passes"
    (other,) = replay(folder, "--samples", "0,1", "--set", "optimizer.lr=1e30")["tried"]
    assert other["outcome"] == "fails"


def test_an_attribute_of_a_module(folder: Path) -> None:
    assert replay(folder, "--samples", "0", "--set", "model.scale=nan")["verdict"] == "critical"


def test_another_dtype(folder: Path) -> None:
    report = replay(folder, "--dtype", "float64", "--ops")
    assert {fact["dtype"] for op in report["ops"] for fact in op["outputs"]} == {"float64"}


def test_the_ops_between_cause_and_symptom(folder: Path) -> None:
    ops = replay(folder, "--ops")["ops"]
    assert any(op["op"] == "aten.div.Tensor" and op["phase"] == "backward" for op in ops)
    assert any(op["location"] == "train.py:12" for op in ops)
    assert sum(fact["nonfinite"] for op in ops for fact in op["outputs"]) > 0


def test_the_table_of_ops_is_printed(folder: Path) -> None:
    report = replay_snapshot(
        folder / "nanodoc-out/nanodoc-step2.pt", Config(device="cpu"), None, ReplayOptions(ops=True)
    )
    text = render(report)
    assert "non-finite" in text
    assert "div (backward)" in text


def test_one_experiment_by_name(folder: Path) -> None:
    report = replay(folder, "--experiment", "eval-mode")
    assert [row["name"] for row in report["findings"][0]["experiments"]] == [
        "same again",
        "eval mode (no dropout, BatchNorm's running statistics)",
    ]
    assert report["findings"][0]["fixes"][0]["verified"] is None
    nothing = replay(folder, "--experiment", "autocast-off")
    assert {"what": "autocast-off", "why": "it would change nothing here"} in nothing["not_checked"]


def test_the_smallest_failing_batch(folder: Path) -> None:
    report = replay(folder, "--minimise", "--output", "min.pt")
    assert report["artifacts"]["minimal"] == "min.pt"
    content = torch.load(folder / "min.pt", weights_only=True)
    assert content["batches"][0].shape == (1, 3)
    assert content["indices"] == [19]
    again = replay(folder, snapshot="min.pt")
    assert again["findings"][0]["name"] == "infinite-gradient"
    assert again["findings"][0]["culprit"]["location"]["line"] == 12
    done = asked(folder, "--minimise", "--output", "min.pt")
    assert done.returncode == 2
    assert "min.pt: this file exists" in done.stderr


def test_the_debugger_stops_in_the_users_frame(folder: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "nanodoc",
            "replay",
            "nanodoc-out/nanodoc-step2.pt",
            "--pdb",
            "--output-format",
            "concise",
        ],
        input="p power[3].item()\np self.__class__.__name__\nc\n",
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "aten.sqrt.default has run" in done.stderr
    assert "0.0" in done.stderr
    assert "'Net'" in done.stderr
    assert done.stdout.startswith("train.py:12:")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--samples", "0,99"), "the batch has 8 samples, numbered from 0"),
        (("--samples", "a"), "write numbers separated by commas"),
        (("--samples", "1,1"), "lists a sample twice"),
        (("--set", "optimizer.lr"), "write KEY=NUMBER"),
        (("--set", "optimizer.speed=1"), "no optimizer has the option 'speed'"),
        (("--set", "optimizer[3].lr=1"), "the recipe has 1 optimizers"),
        (("--set", "model.linear.weight=1"), "the model has no number 'linear.weight'"),
        (("--set", "lr=1"), "it takes optimizer.OPTION"),
        (("--dtype", "int8"), "--dtype 'int8' is not one of"),
        (("--experiment", "magic"), "no experiment 'magic'; there are same-again"),
        (("--no-amp", "--amp", "float16"), "contradict each other"),
        (("--budget", "soon"), "a number of seconds"),
    ],
)
def test_bad_input_is_one_line(folder: Path, options: tuple[str, ...], said: str) -> None:
    done = asked(folder, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_differs_from_where_it_was_written_is_said(folder: Path) -> None:
    content = torch.load(folder / "nanodoc-out/nanodoc-step2.pt", weights_only=True)
    content["torch"] = "2.99.0"
    content["machine"]["device"] = "cuda:0"
    torch.save(content, folder / "there.pt")
    (why,) = [
        one["why"]
        for one in replay(folder, snapshot="there.pt")["not_checked"]
        if one["what"] == "bitwise reproduction"
    ]
    assert "device cuda:0 there, cpu here" in why
    assert "torch 2.99.0 there" in why


def test_the_smallest_of_some_samples_is_numbered_as_in_the_snapshot(folder: Path) -> None:
    report = replay(
        folder, "--samples", "2,3", "--dtype", "float64", "--minimise", "--output", "min.pt"
    )
    assert report["tried"][-1]["name"] == "samples 3 alone"
    content = torch.load(folder / "min.pt", weights_only=True)
    assert content["indices"] == [19]
    assert content["batches"][0].dtype == torch.float32
