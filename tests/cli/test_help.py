"""--help: usage and examples first, options under headings, values as people write them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nanodoc.config import OPTIONS, PANELS
from tests.helpers import nanodoc

COMMANDS = (
    *("run", "check-grad-graph", "replay", "view", "explain", "init", "rules", "demo", "env"),
    "net",
)


def test_the_help_of_run() -> None:
    text = nanodoc("run", "--help", COLUMNS="80").stdout
    lines = text.splitlines()
    assert lines[0] == "Usage: nanodoc run [OPTIONS] SCRIPT|FILE.py:NAME|-m MODULE [ARGS]"
    places = [
        text.index(words)
        for words in (
            "nanodoc run train.py --lr 3e-4\n",
            "nanodoc run train.py --output report.html -- --lr 3e-4\n",
            "nanodoc run -m pkg.train --lr 3e-4\n",
            "nanodoc run train.py:build --steps 200\n",
            "SCRIPT is your training script",
            *(f"\n{panel}:\n" for panel in PANELS),
        )
    ]
    assert places == sorted(places)
    for row in ("-m MODULE ", "--steps N ", "-q, --quiet ", "--output [FORMAT=]FILE"):
        assert f"\n  {row}" in text
    assert "-q" not in text.replace("-q, --quiet", "")


@pytest.mark.parametrize("columns", ["80", "120"])
@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command(command: str, columns: str) -> None:
    done = nanodoc("help", command, COLUMNS=columns)
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: nanodoc {command} ")
    assert max(map(len, done.stdout.splitlines())) <= int(columns)
    for odd in ("<str>", "<int>", "<path>", "<bool>", "<list", "{", "[required]"):
        assert odd not in done.stdout.replace("{'x', 'y', 'state'}", "")
    assert nanodoc(command, "--help", COLUMNS=columns).stdout == done.stdout


@pytest.mark.parametrize("arguments", [("help",), ("--help",)])
def test_the_list_of_commands(arguments: tuple[str, ...]) -> None:
    text = nanodoc(*arguments, COLUMNS="80").stdout
    assert "  nanodoc run train.py --lr 3e-4     watch a training script and diagnose it\n" in text
    rows = text.partition("Commands:\n")[2].splitlines()
    assert [row.split()[0] for row in rows] == list(COMMANDS)
    assert not any(row.endswith("...") for row in rows)


def test_without_a_command_the_help_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanodoc"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 2
    assert done.stdout.startswith("Usage: nanodoc [OPTIONS] COMMAND [ARGS]...\n")


def test_each_option_has_its_heading() -> None:
    assert all(option.panel in PANELS for option in OPTIONS.values() if option.commands)
