"""What `run` and the others answer to a target that cannot be run: what to type, at once, before
anything of the user's is run and before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanodoc.recipe.target import defined_names, tree_of
from tests.helpers import nanodoc

TRAINS = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
open("trained", "w").close()
"""

FILES = {
    "train.py": TRAINS,
    "parts.py": "class Net: ...\ndef make(): ...\n",
    "missing.py": "import no_such_module\nimport torch\ndef f(): ...\n",
    "broken.py": "def build(:\n",
    "note.ipynb": '{"cells": []}',
    "code.tar.gz": "",
    "job.sh": "python train.py",
    "run.yaml": "steps: 3",
    "weights.pt": "",
    "folder/main.py": TRAINS,
    "folder/other.py": "",
}

SAID = {
    ("run", "train.py:build"): "train.py has no 'build'; to run the file as a script, use: nanodoc "
    "run train.py",
    ("check-grad-graph", "train.py"): "train.py has no 'build'; check-grad-graph needs a function "
    "that returns what to train: nanodoc init train.py writes one to fill in",
    ("run", "parts.py:maek"): "parts.py has no 'maek'; did you mean 'make'?",
    ("run", "trian.py"): "did you mean train.py?",
    ("run", "trian.py", "--lr", "3"): "did you mean train.py?",
    ("run", "pkg.train"): "for a module use: nanodoc run -m pkg.train",
    ("run", "-m", "pkg.train"): "no module named pkg",
    ("run",): "what is to be run? A script: nanodoc run train.py",
    ("run", "-m", "train.py"): "not the name of a module; for a file: nanodoc run train.py",
    ("run", "train.py", "-m", "pkg", "--", "x"): "-m pkg and train.py: give one of them",
    ("run", "x" * 300 + ".py"): "cannot read xxx",
    ("replay", "x" * 300 + ".pt"): "cannot read xxx",
    (
        "explain",
        "train.py",
    ): "train.py is a script, not an error; to examine it: nanodoc run train.py",
    ("run", "-m", "folder/main.py"): "not the name of a module; for a file: nanodoc run "
    "folder/main.py",
    ("run", "folder"): "folder is a folder; give a file in it: nanodoc run folder/main.py",
    ("run", "note.ipynb"): "`nanodoc init note.ipynb` writes a recipe from its cells",
    ("run", "code.tar.gz"): "is an archive; unpack it, then: nanodoc run FOLDER/train.py",
    ("run", "job.sh"): "is a shell script",
    ("run", "run.yaml"): "nanodoc run --config run.yaml train.py",
    ("run", "weights.pt"): "nanodoc replay weights.pt",
    ("run", "missing.py"): "missing.py:1 imports no_such_module, which this Python does not have",
    ("run", "parts.py"): "parts.py trains nothing when it is run: it only defines functions make "
    "and classes Net",
    ("run", "broken.py"): "syntax error in broken.py:1",
    ("run", "train.py", "--steps", "3", "--output", "foo=x.html", "--"): "--output foo=x.html: "
    "there is no format 'foo'",
    ("run", "train.py", "--output", "htlm=x", "--"): "did you mean html?",
    ("run", "train.py", "--output", "/no-such-folder/x.html", "--"): "there is no folder "
    "/no-such-folder; make it, or choose another",
    ("run", "--snapshot-dir", "/no-such-folder/x", "train.py"): "there is no folder "
    "/no-such-folder",
    ("run", "train.py", "--stepz", "3", "--", "--lr"): "No such option: --stepz",
    ("replay", "nowhere.pt"): "no such snapshot: nowhere.pt",
    ("replay", "train.py"): "train.py is not a snapshot, or is truncated; to run it: nanodoc run "
    "train.py",
    ("train.py", "--lr", "3"): "train.py is not a command; use: nanodoc run train.py --lr 3",
    ("train.py:build",): "train.py:build is not a command; use: nanodoc run train.py:build",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("arguments", SAID, ids=" ".join)
def test_it_is_said_what_to_type_and_nothing_is_run(
    arguments: tuple[str, ...], files: Path
) -> None:
    done = nanodoc(*arguments, cwd=files)
    assert done.returncode == 2, done.stderr
    assert SAID[arguments] in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (files / "trained").exists()
    assert not (files / "nanodoc-out").exists()
    assert not Path("/no-such-folder").exists()


def test_torch_is_not_imported_for_it(files: Path) -> None:
    """By the process that answers; the one that is started early is ended unused."""
    code = (
        "import sys\nfrom nanodoc.cli.app import main\ntry:\n    main()\nexcept SystemExit as end:\n"
        "    print(end.code, 'torch' in sys.modules)\n"
    )
    for arguments in (["run", "train.py:build"], ["run", "nowhere.py"], ["replay", "nowhere.pt"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=files,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
        )
        assert done.stdout == "2 False\n", done.stderr


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import a.b, c as d\nfrom e import f as g\n", {"a", "d", "g"}),
        ("if x:\n    build = 1\nelse:\n    def other(): ...\n", {"build", "other"}),
        ("for i in y:\n    with z as w: pass\n", {"i", "w"}),
        ("def f():\n    inner = 1\n    global outer\n", {"f", "outer"}),
        ("class A:\n    build = 1\n", {"A"}),
        ("if __name__ != '__main__':\n    build = 1\n", {"build"}),
        ("print(n := 1)\ntry:\n    pass\nexcept E as e:\n    q, *r = 1, 2\n", {"n", "q", "r"}),
        ("from recipes import *\n", None),
        ("globals()['build'] = 1\n", None),
        ("exec('build = 1')\n", None),
        ("import sys\nsys.modules[__name__].build = 1\n", None),
        ("def __getattr__(name): ...\n", None),
    ],
)
def test_names_of_a_module(text: str, names: set[str] | None, tmp_path: Path) -> None:
    """None where the source does not tell: then the file is imported as before."""
    path = tmp_path / "module.py"
    path.write_text(text)
    tree = tree_of(path)
    assert tree is not None
    assert defined_names(tree) == names


def test_a_name_that_only_the_import_makes_is_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "def made():\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    return {'model': model, 'loss_fn': lambda m, b: m(b).square().mean(),\n"
        "            'data': [torch.ones(3, 2)], 'optimizer': torch.optim.SGD(model.parameters())}\n"
        "globals()['build'] = made\n"
    )
    done = nanodoc("run", "train.py:build", "--steps", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_script_whose_last_line_assigns_what_it_trained_is_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "def fit(model, optimizer):\n"
        "    for step in range(4):\n"
        "        loss = model(torch.ones(4, 2)).square().mean()\n"
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "    return loss\n"
        "model = torch.nn.Linear(2, 1)\n"
        "loss = fit(model, torch.optim.SGD(model.parameters(), lr=0.01))\n"
    )
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "verdict: nothing found" in done.stderr
