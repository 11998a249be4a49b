"""`nanodoc explain` as a user runs it: a code, an error, a file, stdin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanodoc.cli.app import app
from tests.helpers import nanodoc

ERROR = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x10 and 20x3)"


def test_a_rule_is_explained_by_code_and_name() -> None:
    assert nanodoc("explain", "nd301").stdout.startswith("ND301 infinite-gradient (critical): ")
    assert nanodoc("explain", "Infinite-Gradient").stdout == nanodoc("explain", "ND301").stdout


@pytest.mark.parametrize("words", [[ERROR], ERROR.split()], ids=["quoted", "not quoted"])
def test_an_error_is_explained(words: list[str]) -> None:
    done = nanodoc("explain", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("error")
    assert "a linear layer for 20 features was given 10" in done.stdout
    assert "\x1b" not in done.stdout


def test_stdin_and_a_file_are_read(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "train.py", line 7, in main\n    '
        f"model(x)\n{ERROR}\n"
    )
    (tmp_path / "log.txt").write_text(text)
    (tmp_path / "powershell.txt").write_bytes(text.encode("utf-16"))
    told = nanodoc("explain", "-", stdin=text)
    assert "--> train.py:7 in main" in told.stdout
    assert nanodoc("explain", "log.txt", cwd=tmp_path).stdout == told.stdout
    assert nanodoc("explain", "powershell.txt", cwd=tmp_path).stdout == told.stdout


def test_json() -> None:
    told = json.loads(nanodoc("explain", ERROR, "--output-format", "json").stdout)
    assert told["id"] == "matmul-shapes"
    assert told["error"] == {
        "type": "RuntimeError",
        "message": ERROR.partition(": ")[2],
        "rank": None,
    }
    assert told["known"] is True
    assert told["location"] is None


def test_of_a_long_log_the_end_is_read(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(("step 1: fine" + 100 * " and well" + "\n") * 12_500 + ERROR)
    done = nanodoc("explain", "log.txt", cwd=tmp_path)
    assert "a linear layer for 20 features" in done.stdout
    assert "only the last 10 MiB of 11 MiB were read" in done.stdout


def test_an_unknown_error_is_no_failure_of_the_command() -> None:
    done = nanodoc("explain", "ValueError: the moon is full")
    assert done.returncode == 0
    assert "not in the knowledge base" in done.stdout


def _printed(*arguments: str) -> str:
    """What the command prints, without a process of its own."""
    done = CliRunner().invoke(app, ["explain", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    "word", ["infinite_gradient", "INFINITE_GRADIENT", "ND-301", "ND 301", "infinite gradient"]
)
def test_a_rule_is_found_however_it_is_written(word: str) -> None:
    assert _printed(word) == _printed("ND301")


def test_several_rules() -> None:
    assert (
        _printed("ND301 ND302")
        == _printed("ND301", "ND302")
        == f"{_printed('ND301')}\n{_printed('ND302')}"
    )
    assert [
        rule["code"] for rule in json.loads(_printed("ND301,ND302", "--output-format", "json"))
    ] == ["ND301", "ND302"]


def test_help_tells_the_exit_codes_and_has_a_short_name() -> None:
    assert _printed("-h") == _printed("--help")
    assert "knowledge base" in _printed("-h")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"PK\x03\x04" + bytes(range(256)) * 40)
    done = nanodoc("explain", "weights.pt", cwd=tmp_path)
    assert done.returncode == 2
    assert "'weights.pt' is not text" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "said"),
    [
        (["explain"], "", "nanodoc explain 'RuntimeError: …'"),
        (["explain", "ND999"], None, "the families are ND1 what came in"),
        (["explain", "ND3"], None, "its rules are ND301 infinite-gradient"),
        (["explain", "ND301x"], None, "no rule 'ND301x'; did you mean ND301?"),
        (["explain", "log-of-zeros"], None, "did you mean log-of-zero?"),
        (["explain", "nowhere/log.txt"], None, "no such file: 'nowhere/log.txt'"),
        (["explain", "-"], " \n", "there is nothing to explain"),
        (["explain", ""], None, "there is nothing to explain"),
        (["explain", "."], None, "is a folder"),
        (["explain", "ND301", "--output-format", "yaml"], None, "is not full or json"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str], stdin: str | None, said: str
) -> None:
    done = nanodoc(*arguments, stdin=stdin)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_torch_is_not_imported_to_explain_an_error() -> None:
    code = (
        f"import sys; sys.argv = ['nanodoc', 'explain', {ERROR!r}]\nfrom nanodoc.cli.app import "
        "main\ntry:\n    main()\nexcept SystemExit as e:\n    assert not e.code, e.code\nassert "
        "'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
