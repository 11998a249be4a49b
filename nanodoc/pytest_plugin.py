"""The pytest plugin: a fixture that fails a test with nanodoc's report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nanodoc.report.report import Report


@pytest.fixture
def assert_healthy(tmp_path: Path) -> Callable[..., Report]:
    """`assert_healthy(recipe, steps=20)` trains what a `build()` returns for a few steps, and fails
    with the report if there is a critical finding or a warning. Files go to the test's temporary
    folder. Other keyword arguments are options of `nanodoc run`. Returns the report."""

    def examined(recipe: Any, steps: int = 20, **options: Any) -> Report:
        from nanodoc.in_code import examine
        from nanodoc.report.report import NOTHING
        from nanodoc.report.terminal import render

        report = examine(recipe, steps, **{"snapshot_dir": str(tmp_path), **options})
        if report.verdict != NOTHING:
            pytest.fail(render(report), pytrace=False)
        return report

    return examined
