"""What a step of a script may touch besides tensors is as it was when the step has been run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, bare, watched

__all__ = ["_our_own_main"]

LOOP = """
SETUP
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), batch_size=8)):
    optimizer.zero_grad()
    BODY
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
print(SHOWN)
digest(model)
"""
STATE = {
    "a namespace": ("import argparse; a = argparse.Namespace(n=0)", "a.n += 1", "a.n"),
    "a class attribute": ("class A: n = 0", "A.n += 1", "A.n"),
    "slots": (
        "class A:\n    __slots__ = ('n',)\na = A(); a.n = 0",
        "a.n += 1",
        "a.n",
    ),
    "a long list": ("seen = list(range(3000))", "seen.append(number)", "len(seen)"),
    "a list in a tuple": ("pair = ([], 1)", "pair[0].append(number)", "pair"),
    "a default and an attribute of a function": (
        "def note(n, kept=[]):\n    kept.append(n); note.calls = getattr(note, 'calls', 0) + 1\n    return kept",
        "note(number)",
        "note(-1), note.calls",
    ),
    "a global of a hook": (
        "seen = []\ndef hook(m, i, o): seen.append(len(seen))\nmaking = Net.__init__\ndef init(s): making(s); s.register_forward_hook(hook)\nNet.__init__ = init",
        "pass",
        "seen",
    ),
    "a file that is open": (
        "log = open('log.txt', 'a')",
        "log.write(f'{number}\\n'); log.flush()",
        "log.close(), __import__('pathlib').Path('log.txt').read_text()",
    ),
    "folders": (
        "import pathlib, os",
        "pathlib.Path(f'run{len(os.listdir())}').mkdir()",
        "sorted(os.listdir())",
    ),
    "an iterator in C code": (
        "import itertools; it = itertools.count()",
        "list(itertools.islice(it, 2))",
        "next(it)",
    ),
    "a queue": (
        "import queue; q = queue.Queue(); [q.put(i) for i in range(99)]",
        "q.get()",
        "q.qsize()",
    ),
    "a generator in an object of an installed package": (
        "import numpy as np\nfrom sklearn.model_selection import ShuffleSplit\nmany = [[[] for _ in range(900)] for _ in range(8)]\nsplit = ShuffleSplit(1, random_state=np.random.RandomState(3))",
        "len(many), list(split.split(X))",
        "split.random_state.rand()",
    ),
    "an error that is caught": (
        "import random; random.seed(0)",
        "\n    try:\n        1 / (number - 2)\n    except ZeroDivisionError:\n        continue",
        "number",
    ),
}


@pytest.mark.parametrize("kind", STATE)
def test_it_is_as_it_was(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    setup, body, shown = STATE[kind]
    text = (HEAD.replace("BAD", "pass") + LOOP).replace("SETUP", setup)
    apart = []
    for side in ("bare", "watched"):
        (tmp_path / side).mkdir()
        path = tmp_path / side / "train.py"
        path.write_text(text.replace("BODY", body).replace("SHOWN", shown))
        apart.append(path)
    out, _ = bare(apart[0])
    capfd.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(apart[1].parent)
        report = watched(apart[1], kept=tmp_path / "kept")
    assert capfd.readouterr().out == out
    assert report.findings == ()


def test_a_training_that_returns_from_its_loop(tmp_path: Path) -> None:
    text = (
        HEAD.replace("BAD", "pass")
        + """
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(9):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        if number == 4:
            return

train(Net())
open("/nonexistent/file")
"""
    )
    (tmp_path / "train.py").write_text(text)
    report = watched(tmp_path / "train.py")
    assert report.run.steps_run == 5
    assert report.findings[0].title.startswith("FileNotFoundError")
    assert report.findings[0].culprit.location is not None
    assert report.findings[0].culprit.location.code == 'open("/nonexistent/file")'


def test_a_script_that_ends_its_process(tmp_path: Path) -> None:
    text = HEAD.replace("BAD", "pass") + LOOP.replace("SETUP", "import os").replace("BODY", "pass")
    end = "open('ran.txt', 'a').write('once\\n')\nos._exit(STATUS)\n"
    path = tmp_path / "train.py"
    for status, code in (("0", 0), ("3", 1)):
        path.write_text(text.replace("SHOWN", "1") + end.replace("STATUS", status))
        done = nanodoc("run", "train.py", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "while the recipe was built" not in done.stderr
        assert (tmp_path / "ran.txt").read_text() == "once\n"
        (tmp_path / "ran.txt").unlink()


def test_an_error_outside_of_the_steps_is_told_as_such(tmp_path: Path) -> None:
    text = HEAD.replace("BAD", "pass") + LOOP.replace("SETUP", "").replace("BODY", "pass")
    for number, broken in enumerate((text.replace("SHOWN", "missing"), "import torch\nmissing\n")):
        path = tmp_path / f"train{number}.py"
        path.write_text(broken)
        finding = watched(path).findings[0]
        assert finding.phase == "script"
        assert "outside the training steps" in finding.explanation
        assert finding.culprit.location is not None
        assert "missing" in finding.culprit.location.code


def test_a_script_that_saves_in_its_steps_is_run_again_all_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What it writes is mute then: its steps are run again with a smaller rate."""
    text = (HEAD.replace("BAD", "pass") + LOOP).replace("SETUP", "pass")
    text = text.replace("BODY", "__import__('pathlib').Path('best.txt').write_text(str(number))")
    path = tmp_path / "train.py"
    path.write_text(text.replace("lr=0.1", "lr=3e4").replace("SHOWN", "number"))
    report = watched(path)
    assert not any("writes files" in why for _, why in report.not_checked)
    assert report.findings[0].name == "divergence"
