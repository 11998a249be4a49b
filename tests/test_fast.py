"""What `--fast` leaves out, and that it fails what it should have left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from torch.utils.data import DataLoader

from tests import fast
from tests.fast import Fast, Measure, reaches
from tests.helpers import line_of, nanodoc


def through_a_helper() -> None:
    nanodoc("--version")


def through_an_import() -> None:
    from multiprocessing import Process

    Process(target=print).start()


def through_workers() -> None:
    list(DataLoader([1, 2], num_workers=1))


@pytest.mark.parametrize("test", [through_a_helper, through_an_import, through_workers])
def test_what_names_a_process_is_left_out(test: Callable[[], None]) -> None:
    assert reaches(test, {})


def test_what_names_none_is_kept() -> None:
    assert not reaches(line_of, {})


def test_a_process_that_was_overlooked_fails_the_test() -> None:
    watch = Fast()
    body = watch.pytest_runtest_call()
    watch.running = True
    next(body)
    with pytest.raises(RuntimeError, match="with --fast"):
        subprocess.run([sys.executable, "--version"], check=False)
    watch.running = False
    with pytest.raises(pytest.fail.Exception, match=r"mark it `@pytest\.mark\.slow`"):
        body.send(None)


def test_what_took_long_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "slow_tests.txt"
    listed.write_text("tests/test_a.py::test_now_quick\ntests/test_b.py::test_not_run\n")
    monkeypatch.setattr(fast, "_SLOW_TESTS", listed)
    measure = Measure()
    for name, seconds in (("test_slow", 0.15), ("test_slow", 0.1), ("test_now_quick", 0.1)):
        report = SimpleNamespace(nodeid=f"tests/test_a.py::{name}", duration=seconds)
        measure.pytest_runtest_logreport(cast(pytest.TestReport, report))
    measure.pytest_sessionfinish()
    kept = ["tests/test_a.py::test_slow", "tests/test_b.py::test_not_run"]
    assert listed.read_text().splitlines() == kept
