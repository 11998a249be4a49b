"""`nanodoc replay` of a script's step: the script is run up to its training, and the snapshot's step
takes the place of its first."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.replay import replay_snapshot
from nanodoc.pipeline.replay_options import ReplayOptions
from tests.helpers import line_of, nanodoc
from tests.script.styles import HEAD, STYLES
from tests.script.test_styles import _our_own_main, script, watched

__all__ = ["_our_own_main"]

LATER = "x = x + (x - x.detach()).abs().sqrt() if self.calls > 5 else x"


def snapshot_of(path: Path) -> Path:
    report = watched(path)
    assert report.findings, report.verdict
    assert report.artifacts["snapshot"] is not None
    return Path(report.artifacts["snapshot"])


@pytest.mark.parametrize("style", [style for style in STYLES if "Net()" in STYLES[style]])
def test_the_step_is_bitwise_the_runs(
    style: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = script(tmp_path, style, LATER)
    snapshot = snapshot_of(path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    capfd.readouterr()
    report = replay_snapshot(snapshot, Config(device="cpu"))
    assert capfd.readouterr() == ("", "")  # the script's start says nothing
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before
    assert report.run.reproduced == "bitwise"
    found = report.findings[0]
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, LATER)
    assert f"nanodoc-step{found.step}.pt" == snapshot.name


COUNTS = """
class State:
    def __init__(self):
        self.seen, self.history = 0, []
state, counts, log = State(), {"batches": 0}, open("log.txt", "a")
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
try:
    while step < 12:  # step
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss = loss / (7 - counts["batches"]) ** 0.5 + 0 * (step + state.seen + len(state.history))
        loss.backward()
        optimizer.step()
        step += 1
        state.seen += 1
        state.history.append(step)
        counts["batches"] += 1
        log.write("one\\n")
finally:
    torch.save(model.state_dict(), "model.pt")
    log.close()
"""


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + COUNTS)
    return path


def test_state_beside_the_model_is_put_back(counting: Path) -> None:
    snapshot = snapshot_of(counting)
    content = torch.load(snapshot, weights_only=True)
    assert content["step"] == 7
    report = replay_snapshot(snapshot, Config(device="cpu"))
    assert report.run.reproduced == "bitwise"
    assert report.findings[0].culprit.location is not None
    assert report.findings[0].culprit.location.line == line_of(counting, "loss = loss / (7")


def test_as_a_user_types_it(counting: Path) -> None:
    ran = nanodoc("run", "train.py", cwd=counting.parent)
    assert ran.returncode == 1
    assert "next: nanodoc replay nanodoc-out/nanodoc-step7.pt" in ran.stderr
    kept = (Path("log.txt").read_text(), Path("model.pt").stat().st_mtime_ns)
    done = nanodoc(
        "replay", "nanodoc-out/nanodoc-step7.pt", "--output-format", "json", cwd=counting.parent
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["run"]["entrypoint"] == "train.py"
    assert report["run"]["reproduced"] == "bitwise"
    # neither its log nor what it saves in the end is written again
    assert (Path("log.txt").read_text(), Path("model.pt").stat().st_mtime_ns) == kept


def test_a_script_that_has_changed_is_told(counting: Path) -> None:
    snapshot = snapshot_of(counting)
    counting.write_text(counting.read_text().replace("(7 - ", "(70 - "))
    report = replay_snapshot(snapshot, Config(device="cpu"))
    assert report.run.reproduced == "no"
    told = [why for what, why in report.not_checked if what == "bitwise reproduction"]
    assert told[0] == "train.py has changed since the snapshot was written"
    assert told[1].startswith("the loss was inf there, 0.")


def test_what_does_not_come_to_its_training(counting: Path) -> None:
    snapshot = snapshot_of(counting)
    counting.write_text("import subprocess\nsubprocess.run(['true'])\n")
    with pytest.raises(UsageError, match=r"train\.py did not reach a step .*RuntimeError"):
        replay_snapshot(snapshot, Config(device="cpu"))
    counting.write_text("print('nothing')\n")
    with pytest.raises(UsageError, match="did not reach a step of its training: it made none"):
        replay_snapshot(snapshot, Config(device="cpu"))


@pytest.mark.parametrize("option", ["dtype", "debug"])
def test_what_a_script_cannot_be_asked_for(counting: Path, option: str) -> None:
    options = ReplayOptions(dtype="float64") if option == "dtype" else ReplayOptions(debug=True)
    snapshot = snapshot_of(counting)
    with pytest.raises(UsageError, match="as the script computes it"):
        replay_snapshot(snapshot, Config(device="cpu"), options=options)


def test_a_strangers_snapshot_picks_no_file_elsewhere(counting: Path, tmp_path: Path) -> None:
    snapshot = snapshot_of(counting)
    content = torch.load(snapshot, weights_only=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    with pytest.raises(UsageError, match="outside this folder; to allow it, pass --entrypoint"):
        replay_snapshot(snapshot, Config(device="cpu"))
    content["script"]["module"], content["script"]["target"] = True, "pip"
    torch.save(content, "other.pt")
    with pytest.raises(
        UsageError, match='not in this folder; to allow it, pass --entrypoint "-m pip"'
    ):
        replay_snapshot(Path("other.pt"), Config(device="cpu"))
    content["script"]["target"] = "../elsewhere"
    torch.save(content, "other.pt")
    with pytest.raises(UsageError, match="not in this folder"):
        replay_snapshot(Path("other.pt"), Config(device="cpu"))
    # the user may
    assert replay_snapshot(snapshot, Config(device="cpu"), str(counting)).findings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("arguments", "--lr"),
        ("drawn", [[True, 1]]),
        ("state", [["counts", {}]]),
        ("variables", None),
        ("line", "7"),
    ],
)
def test_a_malformed_snapshot_is_refused(counting: Path, key: str, value: object) -> None:
    content = torch.load(snapshot_of(counting), weights_only=True)
    content["script"][key] = value
    torch.save(content, "bad.pt")
    with pytest.raises(
        UsageError, match="is not a snapshot written by nanodoc: its 'script' is not"
    ):
        replay_snapshot(Path("bad.pt"), Config(device="cpu"))


def test_a_training_that_calls_nanodoc_says_why_not(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        HEAD.replace("BAD", "pass")
        + """
import nanodoc
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with nanodoc.watch(model, optimizer) as watch:
    for number in watch.steps(range(6)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y) / (3 - number)
        loss.backward()
        optimizer.step()
report = watch.report()
print([why for what, why in report.not_checked if what == "snapshot"], report.artifacts)
"""
    )
    import subprocess
    import sys

    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, cwd=tmp_path)
    assert "nanodoc did not start this training and" in done.stdout, done.stderr
