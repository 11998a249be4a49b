"""Patients whose findings, or whose lines, were others once they were compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compiled import Judged, judged, table
from nanodoc.clinic.catalogue import find_patient


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("ignored-class", "loss"),  # the line that made the loss module
        ("slow-starter", "loss"),  # the file of the loss function
        ("restless-teacher", "model"),  # a network beside the model, as it was at first
        ("rotated-labels", "model"),  # a call made in another way for some steps
    ],
)
def test_compiled_they_are_told_the_same(name: str, way: str, tmp_path: Path) -> None:
    seen = list(judged(find_patient(name), way, "eager", tmp_path))
    assert [one.outcome for one in seen] == ["same", "same"]


def test_what_does_not_compile_does_not_count() -> None:
    told = table(
        [
            Judged("one sick", "model", "same"),
            Judged("two sick", "model", "other line"),
            Judged("three sick", "model", "raises when compiled"),
        ]
    )
    assert told.splitlines()[1].split() == ["model", "sick", "1", "2"]
