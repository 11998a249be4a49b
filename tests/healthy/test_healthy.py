"""Healthy trainings of ten kinds run for 300 steps without a warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.healthy import trainings


@pytest.mark.slow
@pytest.mark.parametrize("training", trainings.ALL, ids=lambda one: one.__name__)
def test_a_healthy_training_gets_no_warning(
    training: Callable[[], dict[str, Any]], tmp_path: Path
) -> None:
    report = run_training(
        f"{trainings.__file__}:{training.__name__}",
        Config(device="cpu", snapshot_dir=str(tmp_path)),
    )
    said = [
        (one.severity, one.code, one.title) for one in report.findings if one.severity != "info"
    ]
    assert not said
    assert report.vitals.steps == 300
