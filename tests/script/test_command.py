"""`nanodoc run SCRIPT -- ARGUMENTS` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nanodoc.errors import InternalError
from nanodoc.replay.step_state import StateKeeper
from tests.helpers import nanodoc
from tests.script.test_styles import _our_own_main, bare, script, watched

__all__ = ["_our_own_main"]

TRAIN = """
import argparse
import torch

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for _ in range(6):  # step
            optimizer.zero_grad()
            loss = model(torch.randn(8, 3)).pow(2).mean()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text(
        "from pkg.parts import main\nimport sys\nprint(sys.argv[1:], __name__, __package__)\nmain()\n"
    )
    (tmp_path / "pkg" / "parts.py").write_text(TRAIN)
    return tmp_path


def test_stdout_is_the_scripts_alone(folder: Path) -> None:
    own = subprocess.run(
        [sys.executable, "train.py", "--lr", "0.1"], cwd=folder, capture_output=True, text=True
    )
    report = folder / "report.json"
    options = ["--output-format", "json", "--output", str(report)]
    done = nanodoc("run", *options, "train.py", "--", "--lr", "0.1", cwd=folder)
    assert (done.returncode, done.stdout) == (0, own.stdout)
    told = json.loads(report.read_text())
    assert told["run"]["entrypoint"] == "train.py -- --lr 0.1"
    assert told["run"]["step_found"] == "step train.py:14, replay of step 0 bitwise the same"
    assert told["run"]["steps_run"] == 6


def test_a_module_and_a_number_of_steps(folder: Path) -> None:
    done = nanodoc("run", "--steps", "8", "-m", "pkg", "--lr", "0.1", "--epochs", "3", cwd=folder)
    assert done.returncode == 0
    assert "['--lr', '0.1', '--epochs', '3'] __main__ pkg" in done.stdout
    assert "epoch 0" in done.stdout
    assert "epoch 1" not in done.stdout
    assert "step pkg/parts.py:14, replay of step 0 bitwise the same" in done.stderr
    assert "steps          8\n" in done.stderr


def test_flags_in_one_letter_go_before_the_script(folder: Path) -> None:
    done = nanodoc("run", "-v", "train.py", "--", "--lr", "0.1", cwd=folder)
    assert done.returncode == 0
    assert "step train.py:14, replay of step 0 bitwise the same" in done.stderr


def test_missing_arguments_are_the_scripts_to_tell(folder: Path) -> None:
    done = nanodoc("run", "train.py", cwd=folder)
    assert done.returncode == 2
    assert "usage: train.py" in done.stderr
    assert "--lr" in done.stderr
    assert "nanodoc" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\ndef train(): ...\nclass Net: ...\n", "functions train and classes Net"),
        ("print('no training here')\n", "no optimizer step was seen"),
    ],
)
def test_a_file_without_a_training(folder: Path, text: str, said: str) -> None:
    (folder / "other.py").write_text(text)
    done = nanodoc("run", "other.py", cwd=folder)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_error_of_ours_leaves_the_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(StateKeeper, "take", broken)
    path = script(tmp_path, "functions called per epoch")
    out, _ = bare(path)
    capsys.readouterr()
    with pytest.raises(InternalError, match="the script went on unwatched"):
        watched(path)
    assert capsys.readouterr().out == out


def test_the_first_step_raises(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN.replace("randn(8, 3)", "randn(8, 4)"))
    done = nanodoc("run", "train.py", "--lr", "0.1", cwd=folder)
    assert done.returncode == 1
    assert "Traceback (most recent call last):" in done.stderr
    assert "critical[ND705]" in done.stderr
    assert "--> train.py:16:20 in main" in done.stderr
    assert "/nanodoc/" not in done.stderr.split("nanodoc 0.1.0")[0]
