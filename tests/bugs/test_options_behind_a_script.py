"""Options of nanodoc's that stand behind a script are the script's own: where it does not know
them, its error says nothing of nanodoc."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
print(parser.parse_args())
"""


def test_it_is_said_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", "--output-format", "json", "--quiet", cwd=tmp_path)
    assert done.returncode == 2
    assert "unrecognized arguments: --output-format json --quiet" in done.stderr
    assert (
        "nanodoc: --output-format and --quiet after the script were passed to the script; to give "
        "them to nanodoc, add --: nanodoc run train.py --output-format json --quiet --\n"
        in done.stderr
    )


def test_an_error_of_the_scripts_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for arguments in (["--rate", "3"], ["--", "--quiet"]):
        done = nanodoc("run", "train.py", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert "nanodoc:" not in done.stderr
