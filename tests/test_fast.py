"""What `--fast` leaves out, and that it fails what it should have left out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from torch.utils.data import DataLoader

from tests.fast import Fast, reaches
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
