"""A training script with an argument parser sees its own command line, and its exit is a
finding."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc, report_of

SCRIPT = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()

def build():
    model = torch.nn.Linear(2, 1)
    return {"model": model, "loss_fn": lambda m, b: m(b).mean(), "data": [torch.ones(2, 2)], "max_steps": 1}

def leaves():
    sys.exit("no data here")
"""


def test_the_scripts_own_parser(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py:build", "--output-format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_sys_exit_in_build(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py:leaves", "--output-format", "json", cwd=tmp_path)
    assert done.returncode == 1
    assert report_of(done)["findings"][0]["title"] == "SystemExit: no data here"
