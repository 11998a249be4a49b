"""Fixes of silent mistakes are tried on the run's own steps, from the first one: the loss must end
clearly lower."""

from __future__ import annotations

import builtins
import io
from pathlib import Path

import pytest

from nanodoc.clinic.catalogue import PATIENTS
from nanodoc.config import Config
from nanodoc.experiments.run import ExperimentRun
from nanodoc.pipeline.run import run_training
from nanodoc.report.terminal import render

BY_NAME = {patient.name: patient for patient in PATIENTS}


@pytest.mark.parametrize(
    ("name", "patch"),
    [
        ("spoken-digits", "scores"),
        ("tumour-masks", None),  # the sigmoid is a layer: no text to change
        ("rent-table", "model(features).squeeze(-1) - rent"),
        ("forgotten-clear", None),
    ],
)
def test_the_same_steps_end_lower_with_the_fix(
    name: str, patch: str | None, tmp_path: Path
) -> None:
    report = run_training(
        BY_NAME[name].entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    fix = report.findings[0].fixes[0]
    assert fix.verified
    assert fix.patch == patch
    assert "steps end at a loss of" in (fix.outcome or "")
    assert f"verified by replay: {fix.outcome}" in render(report)


def test_the_fix_is_written_as_a_patch(tmp_path: Path) -> None:
    report = run_training(
        BY_NAME["spoken-digits"].entrypoint(),
        Config(device="cpu", snapshot_dir=str(tmp_path), fix=True),
    )
    text = Path(report.artifacts["patch"] or "").read_text()
    assert "-            return torch.softmax(scores, dim=-1)" in text
    assert "+            return scores" in text


def test_trying_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    one = run_training(
        BY_NAME["forgotten-clear"].entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    other = run_training(
        BY_NAME["forgotten-clear"].entrypoint(),
        Config(device="cpu", snapshot_dir=str(tmp_path), budget=0.0),
    )
    assert one.vitals.losses == other.vitals.losses
    assert other.findings[0].fixes[0].verified is None


def test_an_error_of_our_own_keeps_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ValueError("unforeseen")

    monkeypatch.setattr(ExperimentRun, "treat", broken)
    report = run_training(
        BY_NAME["spoken-digits"].entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    assert report.findings[0].code == "ND612"
    assert (
        "fixes",
        "stopped by an error of nanodoc's own: ValueError: unforeseen",
    ) in report.not_checked
    monkeypatch.setenv("NANODOC_DEBUG", "1")
    with pytest.raises(ValueError, match="unforeseen"):
        run_training(
            BY_NAME["spoken-digits"].entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
        )


WRITES = """
import torch
import torch.nn.functional as F
from torch import nn

def train_step(model, batch, optimizer):
    loss = F.cross_entropy(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    with open("log.txt", "a") as file:
        file.write(f"{loss.item()}\\n")
    return loss

def build():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    x = torch.randn(8, 16, 6)
    return {"model": model, "train_step": train_step, "data": list(zip(x, x[:, :, :3].argmax(2))), "max_steps": 30,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.3)}
"""


def test_a_train_step_that_writes_files_is_not_run_again_for_many_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(WRITES)
    report = run_training("train.py:build", Config(device="cpu"))
    assert report.findings[0].code == "ND608"
    assert report.findings[0].fixes[0].verified is None
    assert (
        "experiments on earlier steps",
        "train_step writes files, which a re-run would overwrite",
    ) in report.not_checked
    assert len(Path("log.txt").read_text().splitlines()) <= 30 + 3  # looks at single steps
    assert builtins.open is io.open
