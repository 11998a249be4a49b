"""Fixes are tried on the step that failed: each says what came of it, and the run is left as it
was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nanodoc.clinic.catalogue import find_patient
from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from nanodoc.report.public import public_form


def first(name: str, tmp_path: Path) -> Finding:
    report = run_training(
        find_patient(name).entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    return report.findings[0]


@pytest.mark.parametrize(
    "name",
    [
        "half-overflow",
        "dropout-overflow",
        "collapsing-scale",
        "half-epsilon",
        "clipped-while-scaled",
    ],
)
def test_a_fix_is_verified(name: str, tmp_path: Path) -> None:
    finding = first(name, tmp_path)
    assert finding.fixes[0].verified is True, finding.fixes


def test_the_dtype_is_found_by_experiment(tmp_path: Path) -> None:
    finding = first("half-overflow", tmp_path)
    rows: dict[str, Any] = {row["name"]: row["outcome"] for row in finding.experiments}
    assert rows["float32 (autocast off)"] == "passes"
    assert rows["bfloat16"] == "passes"
    fix = finding.fixes[0]
    assert "in float32" in fix.title
    assert fix.loss_change is not None
    assert fix.loss_change < 1e-2


def test_how_a_fix_is_tried_is_not_in_the_public_report(tmp_path: Path) -> None:
    report = run_training(
        find_patient("half-overflow").entrypoint(), Config(device="cpu", snapshot_dir=str(tmp_path))
    )
    (fix, *_) = public_form(report)["findings"][0]["fixes"]
    assert set(fix) == {"title", "patch", "verified", "confidence", "loss_change", "outcome"}


def test_what_is_wrong_in_every_dtype_is_said_to_fail_there(tmp_path: Path) -> None:
    """A derivative that is infinite: neither float32 nor bfloat16 helps, and nobody claims it."""
    finding = first("cosine-in-half", tmp_path)
    assert all(
        fix.verified is not True
        for fix in finding.fixes
        if "float32" in fix.title or "bfloat16" in fix.title
    )
