"""Shared fixtures: each test runs in a folder of its own, and golden texts are compared (or
rewritten with --overwrite)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fast import Fast, Measure

# A shell's background job is started with SIGINT ignored, and whatever it starts as well; the tests
# send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overwrite",
        action="store_true",
        help="rewrite the golden files with what the tests produced",
    )
    parser.addoption(
        "--fast", action="store_true", help="only the tests without processes of their own"
    )
    parser.addoption(
        "--measure", action="store_true", help="write down which tests are too slow for --fast"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--fast"):
        config.pluginmanager.register(Fast(), "fast")
    # xdist's workers tell the process that started them
    if config.getoption("--measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measure(), "measure")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` is what tests/golden/<name>.txt holds."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / f"{name}.txt"
        if request.config.getoption("--overwrite"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing: run pytest --overwrite and read what it wrote"
        assert text == path.read_text(encoding="utf-8")

    return compare
