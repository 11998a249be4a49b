"""`nanodoc init train.py` writes the beginning of a recipe."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from nanodoc.errors import UsageError
from nanodoc.recipe.outline import outline, recipe_text
from tests.helpers import nanodoc

TRAIN = """
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

class Base(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        self.linear = nn.Linear(width, 1)

class Rows(Dataset):
    def __init__(self, path):
        self.path = path

def train(args):
    model, loader = Base(args.width), DataLoader(Rows(args.path), batch_size=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(model.linear(x), y)
        loss.backward()
        optimizer.step()
"""
WRITTEN = '''\
"""A recipe for nanodoc, made from train.py. Replace each `...`, then run

    nanodoc run train_recipe.py:build
"""

import torch
from train import Base, Rows


def loss_fn(model, batch):
    """The loss, a scalar, of the model on one batch of `data`."""
    # train.py has: loss = nn.functional.mse_loss(model.linear(x), y)
    ...


def build():
    torch.manual_seed(0)
    # models in train.py: Base(width, depth) (line 6)
    model = Base(...)
    # datasets in train.py: Rows(path) (line 11)
    # functions in train.py: train(args) (line 15)
    # train.py has: DataLoader(Rows(args.path), batch_size=8)
    data = ...  # a DataLoader, or a list of batches
    # train.py has: torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return {"model": model, "data": data, "loss_fn": loss_fn, "optimizer": optimizer}
'''


def test_it_names_what_the_file_defines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = nanodoc("init", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nanodoc run train_recipe.py:build" in done.stdout
    assert (tmp_path / "train_recipe.py").read_text() == WRITTEN
    again = nanodoc("init", "train.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "train_recipe.py already exists" in again.stderr


def test_the_recipe_filled_in_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    nanodoc("init", "train.py", cwd=tmp_path)
    path = tmp_path / "train_recipe.py"
    text = path.read_text().replace("Base(...)", "Base(3)")
    text = text.replace("    ...\n", "    return model.linear(batch).pow(2).mean()\n")
    path.write_text(text.replace("data = ...", "data = [torch.randn(4, 3)]"))
    done = nanodoc("run", "train_recipe.py:build", "--steps", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_file_that_trains_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text("import torch\nfor i in range(3):\n    print(i)\n")
    assert nanodoc("init", "flat.py", cwd=tmp_path).returncode == 0
    text = (tmp_path / "flat_recipe.py").read_text()
    assert "# importing flat.py also runs the code at line 2" in text
    ast.parse(text)


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ('def main(): ...\nif __name__ == "__main__":\n    main()\n', None),
        ('def main(): ...\nif "__main__" == __name__ and True:\n    main()\n', None),
        ("import torch\ntorch.manual_seed(0)\ntry:\n    import apex\nexcept OSError: ...\n", None),
        ("def main(): ...\nrun = lambda: main()\n", None),
        ('def main(): ...\nif __name__ == "__main__": ...\nelse:\n    main()\n', 4),
        ('def main(): ...\nif __name__ != "__main__":\n    main()\n', 3),
        ("def main(): ...\nmain()\n", 2),
        ("import trainers\ntrainer = trainers.Trainer()\ntrainer.fit()\n", 3),
        ("import argparse\nargs = argparse.ArgumentParser().parse_args()\n", 2),
        ("with open('x') as file:\n    for line in file: ...\n", 2),
    ],
)
def test_what_stands_under_the_guard_is_not_said_to_run(
    tmp_path: Path, code: str, line: int | None
) -> None:
    path = tmp_path / "train.py"
    path.write_text(code)
    text = recipe_text(outline(path), tmp_path / "train_recipe.py", path)
    told = f"# importing train.py also runs the code at line {line};"
    assert (told in text) if line else ("importing" not in text)


def test_self_is_no_argument(tmp_path: Path) -> None:
    """Whatever a method calls it."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n    def __init__(this, width, *rest, depth=2, **more): ...\n"
        "class Rows(torch.utils.data.Dataset):\n    def __init__(self): ...\n"
        "def step(self, batch): ...\n"
    )
    text = recipe_text(outline(path), tmp_path / "train_recipe.py", path)
    assert "Net(width, *rest, depth, **more) (line 2)" in text
    assert "Rows() (line 4)" in text
    assert "step(batch) (line 6)" in text
    assert "self" not in text


def book(*cells: object, **more: object) -> str:
    rows = [{"cell_type": "markdown", "source": ["# no code"]}]
    rows += [{"cell_type": "code", "source": cell, "outputs": []} for cell in cells]  # type: ignore[dict-item]
    return json.dumps({"nbformat": 4, "cells": rows, **more})


def test_a_notebook_is_read(tmp_path: Path) -> None:
    before, _, after = TRAIN.partition("class Rows")
    cells = [
        ["%matplotlib inline\n", "!pip install \\\n", "    torch (\n", "import torch\n", "?torch"],
        before,
        "%%bash\nfor i in 1 2; do echo $i; done",
        "%%time\nfiles = !ls\nif files:\n    !rm x\n" + f"class Rows{after}",
        "print('a'\n      % 3)\ntorch.nn?",
    ]
    (tmp_path / "my notes.ipynb").write_text(book(*cells, metadata={"kernelspec": None}))
    done = nanodoc("init", "my notes.ipynb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "my_notes_recipe.py").read_text()
    ast.parse(text)
    for said in (
        "made from my notes.ipynb",
        "# my notes.ipynb cannot be imported: copy its code here",
        "models in my notes.ipynb: Base(width, depth) (code cell 2)",
        "datasets in my notes.ipynb: Rows(path) (code cell 4)",
        "train(args) (code cell 4)",
        "has: torch.optim.AdamW(",
    ):
        assert said in text
    assert "\nfrom " not in text


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not a notebook: "),
        ("[" * 100_000, "is not a notebook: "),
        ("[]", "is not a notebook: it has no list of cells"),
        ('{"cells": 3}', "is not a notebook: it has no list of cells"),
        ('{"worksheets": []}', "jupyter nbconvert --to notebook a.ipynb"),
        (book(3), "is not a notebook: a code cell has no text"),
        (book(["x = 1", None]), "is not a notebook: a code cell has no text"),
        (book("x = 1", "def (:"), "code cell 2 of a.ipynb is not valid Python"),
        (
            book("x", metadata={"kernelspec": {"language": "julia"}}),
            "a.ipynb is a notebook of 'julia', not of Python",
        ),
    ],
)
def test_a_malformed_notebook_is_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "a.ipynb").write_text(content)
    done = nanodoc("init", "a.ipynb", cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a_recipe.py").exists()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    for name in ("a.ipynb", "a.py"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(65 * 2**20)
        with pytest.raises(UsageError, match="is larger than 64 MiB"):
            outline(tmp_path / name)


def test_names_of_files_end_no_docstring(tmp_path: Path) -> None:
    name = 'a"""\nimport os\n\\.ipynb'
    (tmp_path / name).write_text(book("x = 1"))
    assert nanodoc("init", name, cwd=tmp_path).returncode == 0
    (made,) = tmp_path.glob("*_recipe.py")
    tree = ast.parse(made.read_text())
    assert not any(
        "os" in [n.name for n in x.names] for x in tree.body if isinstance(x, ast.Import)
    )


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "two-words.py").write_text("x = 1\n")
    for name, told in (
        ("none.py", "cannot read none.py"),
        ("broken.py", "is not valid Python"),
        ("two-words.py", "cannot be imported by that name"),
    ):
        done = nanodoc("init", name, cwd=tmp_path)
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
