"""Found by scripts/fuzz over thousands of files: a script's step without its target, a tensor as the spare normal deviate
of Python's generator (which `random.setstate` takes), and lists that hold each other 65 536 times passed the checks. The
first two ended in an internal error, the last one took seven seconds. Later, a batch without values (of the meta
device): an internal error, too; and a script whose name no file can have, and a format of two lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nanodoc.errors import UsageError
from nanodoc.replay.snapshot import read_snapshot
from tests.helpers import nanodoc

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.zeros(8, 4)
    loss = torch.log(torch.relu(model(x) * 0)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def without_target(content: dict[str, Any]) -> None:
    del content["script"]["target"]


def deviate(content: dict[str, Any]) -> None:
    version, words, _ = content["rng"]["python"]
    content["rng"]["python"] = (version, words, torch.zeros(2))


def in_each_other(content: dict[str, Any]) -> None:
    inner: list[Any] = [1]
    for _ in range(16):
        inner = [inner, inner]
    content["script"]["variables"]["x"] = inner


def without_values(content: dict[str, Any]) -> None:
    content["batches"] = [torch.empty(8, 4, device="meta")]


def format_of_two_lines(content: dict[str, Any]) -> None:
    content["nanodoc_snapshot"] = "2\n::error::"


def format_of_numbers(content: dict[str, Any]) -> None:
    content["nanodoc_snapshot"] = torch.zeros(2, 1)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("script")
    (folder / "train.py").write_text(SCRIPT)
    nanodoc("run", "--quiet", "train.py", cwd=folder)
    return next(folder.glob("nanodoc-out/nanodoc-step*.pt"))


@pytest.mark.parametrize(
    "broken",
    [
        without_target,
        deviate,
        in_each_other,
        without_values,
        format_of_two_lines,
        format_of_numbers,
    ],
)
def test_it_is_refused_in_one_line(
    snapshot: Path, tmp_path: Path, broken: Callable[[dict[str, Any]], None]
) -> None:
    read_snapshot(snapshot)  # the sound one is taken
    content = torch.load(snapshot, weights_only=True)
    broken(content)
    path = tmp_path / "broken.pt"
    torch.save(content, path)
    with pytest.raises(UsageError) as refused:
        read_snapshot(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["\ud800", "\ud800/train.py", "train\0.py"])
def test_a_script_whose_name_no_file_can_have(snapshot: Path, tmp_path: Path, name: str) -> None:
    content = torch.load(snapshot, weights_only=True)
    content["script"]["target"] = name
    torch.save(content, tmp_path / "broken.pt")
    done = nanodoc("replay", "broken.pt", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1


def test_a_snapshot_whose_run_knew_no_loss(snapshot: Path) -> None:
    """None is a loss that a run may have; it was compared as a number."""
    content = torch.load(snapshot, weights_only=True)
    content["run"]["loss"] = None
    path = snapshot.with_name("lossless.pt")
    torch.save(content, path)
    done = nanodoc("replay", str(path), cwd=snapshot.parent.parent)
    assert done.returncode == 1, done.stdout + done.stderr


def test_what_torch_warns_of_in_a_strangers_file_is_not_repeated(snapshot: Path) -> None:
    """Such as of a pickle protocol that is not the usual one."""
    told = snapshot.read_bytes()
    at = told.index(b"\x80\x02}")  # the beginning of the pickle
    path = snapshot.with_name("protocol.pt")
    path.write_bytes(told[: at + 1] + b"\x2e" + told[at + 2 :])
    done = nanodoc("replay", str(path), cwd=snapshot.parent.parent)
    assert "protocol" not in done.stderr
    assert "Warning" not in done.stderr
