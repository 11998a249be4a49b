"""`nanodoc view` of a snapshot: what the step was given, without running anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.run import run_training
from nanodoc.replay.held import snapshot_report
from nanodoc.report.formats import rendered
from nanodoc.report.terminal import Look
from tests.helpers import nanodoc
from tests.report.test_page import HOSTILE, Text
from tests.report.test_renderers import SICK


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SICK)
    report = run_training("train.py:build", Config(device="cpu", budget=0.0))
    # nothing of the training is needed, or run
    (tmp_path / "train.py").write_text("raise SystemExit('it was run')\n")
    return Path(str(report.artifacts["snapshot"]))


def test_what_it_holds(snapshot: Path) -> None:
    text = rendered(snapshot_report(snapshot), "full", Look())
    assert "from           step 0 of train.py:build" in text
    assert "gradient norm  nan" in text
    assert "batch (1 tensor)\n  it  float32 [3, 4]  0 to 1\n" in text
    assert "0.scale.weight  float32 [4, 4]" in text
    assert text.endswith(f"next: nanodoc replay {snapshot}\n")


def test_values_that_are_not_finite_come_first(tmp_path: Path) -> None:
    path = tmp_path / "bare.pt"
    weights = {f"layer{i}": torch.zeros(2) for i in range(20)}
    weights["last"] = torch.tensor([1.0, float("nan"), float("inf")])
    torch.save({"x": torch.zeros(1), "y": torch.zeros(1), "state": weights}, path)
    text = rendered(snapshot_report(path), "full", Look())
    assert "model (21 tensors)\n  last  float32 [3]  1 to 1, 2 not finite\n" in text
    assert "and 13 more (-v)" in text


def test_the_page_and_json(snapshot: Path) -> None:
    done = nanodoc("view", str(snapshot), "--output", "json=held.json")
    assert (done.returncode, done.stderr) == (0, "")
    again = nanodoc("view", "held.json", "--output-format", "full")
    assert "0.scale.weight  float32 [4, 4]" in again.stdout
    assert nanodoc("view", str(snapshot)).returncode == 0
    page = Text(snapshot.with_suffix(".html").read_text())
    assert "nothing found" not in page.text
    assert "The state that the step started from" in page.text
    held = json.loads(Path("held.json").read_text())["snapshot"]
    assert [part for part, _ in held["parts"]] == ["batch", "model"]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    path = tmp_path / "bare.pt"
    torch.save({"x": torch.zeros(1), "y": torch.zeros(1), "state": {HOSTILE: torch.zeros(1)}}, path)
    report = snapshot_report(path)
    assert "\x1b" not in rendered(report, "full", Look())
    page = Text(rendered(report, "html", Look()))
    assert not any(tag == "img" for tag, _ in page.elements)


def test_what_is_none_and_forms_that_need_findings(snapshot: Path, tmp_path: Path) -> None:
    done = nanodoc("view", str(snapshot), "--output-format", "sarif")
    assert done.returncode == 2
    assert "nanodoc replay" in done.stderr
    torch.save({"weights": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(UsageError, match="is not a nanodoc snapshot"):
        snapshot_report(tmp_path / "other.pt")


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (torch.tensor([0, 1, 2], dtype=torch.uint16), "uint16 [3]  0 to 2"),
        (torch.tensor([2**63 + 1], dtype=torch.uint64), "uint64 [1]  9.223e+18 to 9.223e+18"),
        (torch.tensor([True, False]), "bool [2]  0 to 1"),
        (torch.zeros(0), "float32 [0]  \n"),
        (torch.ones(2, dtype=torch.complex64), "complex64 [2]  \n"),
        (torch.ones(2, 2).to_sparse(), "float32 [2, 2]  \n"),
    ],
    ids=lambda one: str(one)[:20],
)
def test_every_kind_of_tensor(tensor: torch.Tensor, told: str, tmp_path: Path) -> None:
    path = tmp_path / "bare.pt"
    torch.save({"x": tensor, "y": torch.zeros(1), "state": {"w": torch.zeros(1)}}, path)
    assert told in rendered(snapshot_report(path), "full", Look())
