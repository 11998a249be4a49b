"""Without -v, a crash shows the user's line, the usual cause and the fix; what was observed is not
said to be likely."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODEL = """
import torch
from torch import nn

torch.manual_seed(0)
"""
LOOP = """
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    opt.zero_grad()
    loss = LOSS
    loss.backward()
    opt.step()
"""
FLATTENED = (
    MODEL
    + "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(400, 10))\n"
    + LOOP.replace("LOSS", "model(torch.randn(4, 3, 8, 8)).sum()")
)
UNFLATTENED = (
    MODEL
    + "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(288, 10))\n"
    + LOOP.replace("LOSS", "model(torch.randn(4, 3, 8, 8)).sum()  # the line")
)
INTEGERS = (
    MODEL
    + "model = nn.Linear(3, 1)\n"
    + LOOP.replace("LOSS", "model(torch.arange(12).reshape(4, 3)).sum()  # the line")
)
LABELS = (
    MODEL
    + "model = nn.Linear(3, 5)\n"
    + LOOP.replace(
        "LOSS",
        "nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.tensor([0., 1, 2, 4]))",
    )
)
TOO_HIGH = LABELS.replace("[0., 1, 2, 4]", "[0, 1, 2, 5]")
VIEW = (
    MODEL
    + "model = nn.Linear(3, 4)\n"
    + LOOP.replace("LOSS", "model(torch.randn(6, 3)).t().view(-1).sum()  # the line")
)
KEY = (
    MODEL
    + "model, config = nn.Linear(3, 4), {'lr': 0.1}\n"
    + LOOP.replace("LOSS", "model(torch.randn(6, 3)).sum() * config['scale']  # the line")
)
MISSING = "import no_such_module  # the line\n" + INTEGERS
MISSING_LATER = (
    MODEL
    + "model = nn.Linear(3, 4)\n"
    + LOOP.replace("LOSS", "model(torch.randn(6, 3)).sum()")
    + "import no_such_module  # the line\n"
)
NO_FILE = MODEL + "data = torch.load('no/such.pt')  # the line\nmodel = nn.Linear(3, 4)\n" + LOOP
OTHER_WIDTH = (
    MODEL
    + "def build(n): return nn.Sequential(nn.Linear(3, n), nn.Linear(n, 1))\n"
    + "model = build(8)\nmodel.load_state_dict(build(16).state_dict())  # the line\n"
    + LOOP.replace("LOSS", "model(torch.randn(6, 3)).sum()")
)
RAGGED = """
import torch
from torch import nn
from torch.utils.data import DataLoader

model = nn.Linear(3, 1)
data = [torch.ones(3 + (i == 9)) for i in range(16)]
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x in DataLoader(data, batch_size=4):  # the line
    opt.zero_grad()
    model(x).sum().backward()
    opt.step()
"""
KILLED = (
    "import os, signal\n"
    + MODEL
    + "model = nn.Linear(3, 4)\n"
    + LOOP.replace("LOSS", "model(torch.randn(6, 3)).sum()")
    + "os.kill(os.getpid(), signal.SIGKILL)  # the line\n"
)


def crash(folder: Path, text: str, *options: str) -> str:
    """What the terminal shows of the run."""
    (folder / "crash.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "nanodoc", "run", *options, "crash.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "COLUMNS": "400"},
    )
    return done.stdout + done.stderr


def finding_of(folder: Path, text: str) -> dict[str, Any]:
    """The first finding of the JSON report."""
    crash(folder, text, "--output-format", "json", "--output", "report.json")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    finding: dict[str, Any] = report["findings"][0]
    return finding


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        (FLATTENED, "in_features (400) was computed for", "(not tried): nn.Linear(288, 10)"),
        (UNFLATTENED, "the input is not flattened", "(verified by replay): flatten the input"),
        (INTEGERS, "the input comes from integers", "(verified by replay): "),
        (LABELS, "targets were converted to float", "(verified by replay): class labels are"),
        (
            TOO_HIGH,
            "labels start at 1, or the last layer has one output too few",
            "at least 6 classes",
        ),
        (VIEW, "view() follows transpose() or permute()", "(verified by replay): reshape()"),
        (NO_FILE, "the path is relative", "(not tried): "),
        (OTHER_WIDTH, "the model is built with a different configuration", "drop these weights"),
        (MISSING, "the package is installed in a different environment", "python -m pip install"),
    ],
)
def test_usual_cause_and_fix_are_shown(tmp_path: Path, text: str, cause: str, fix: str) -> None:
    shown = crash(tmp_path, text)
    block = shown[shown.index("critical[") :]
    assert f"= usual cause: {cause}" in block
    assert fix in block
    assert "raised from" not in block


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (MISSING, "ND709", "No module named 'no_such_module'"),
        (MISSING_LATER, "ND709", "No module named 'no_such_module'"),
        (NO_FILE, "ND709", "No such file or directory: 'no/such.pt'"),
        (KEY, "ND709", "config has no key 'scale'."),
        (KILLED, "ND711", "was killed by SIGKILL"),
    ],
)
def test_what_was_observed_is_certain(tmp_path: Path, text: str, code: str, said: str) -> None:
    finding = finding_of(tmp_path, text)
    assert finding["code"] == code
    assert finding["confidence"] == 1.0
    assert said in finding["title"] + finding["explanation"]
    assert "# the line" in text.splitlines()[finding["culprit"]["location"]["line"] - 1]


def test_a_script_without_workers_names_the_sample_that_does_not_fit(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, RAGGED)
    assert finding["code"] == "ND104"
    assert finding["culprit"]["dataset_indices"] == [9]
    assert "(data set 9) has [4] where most others have [3]" in finding["explanation"]
    assert all(fix["verified"] is not False for fix in finding["fixes"])


def test_a_fix_of_several_lines_is_shown_whole(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, OTHER_WIDTH)
    (fix,) = finding["fixes"]
    assert finding["confidence"] == 1.0
    assert not fix["title"].endswith(":")
    assert fix["patch"].splitlines()[-1] == "model.load_state_dict(state, strict=False)"
