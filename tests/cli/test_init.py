"""`nanodoc init train.py` writes the beginning of a recipe."""

from __future__ import annotations

import ast
from pathlib import Path

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
"""A recipe for nanodoc, begun from train.py. Fill in each `...`, then

    nanodoc run train_recipe.py:build
"""

import torch
from train import Base, Rows


def loss_fn(model, batch):
    """A scalar, from the model and one batch of `data`."""
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
    assert "train_recipe.py exists already" in again.stderr


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
    assert "# importing flat.py runs it" in text
    ast.parse(text)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "two-words.py").write_text("x = 1\n")
    for name, told in (
        ("none.py", "cannot read none.py"),
        ("broken.py", "is not Python that can be parsed"),
        ("two-words.py", "cannot be imported by its name"),
    ):
        done = nanodoc("init", name, cwd=tmp_path)
        assert done.returncode == 2
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
