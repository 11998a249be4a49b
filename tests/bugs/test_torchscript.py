"""TorchScript modules take no hooks and no Python frames run in them: recipes with one were refused,
and in scripts they ended in an error of nanodoc's own. A dispatch mode is handed the constants of a
traced module as numbers, at which `aten::equal` raised in the user's first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc, python, report_of

TRAINING = """
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")  # that torch.jit is deprecated


class Net(nn.Module):
    def __init__(self, sick: bool):
        super().__init__()
        self.first, self.second, self.sick = nn.Linear(8, 16), nn.Linear(16, 1), sick

    def forward(self, x):
        h = self.first(x).relu() * 0.5 + 1.0
        if self.sick:
            h = h + (h.mean() - 20.0).log()
        return self.second(h) / 2.0


def build(how="script", sick=False):
    torch.manual_seed(0)
    net = Net(sick)
    net = torch.jit.script(net) if how == "script" else torch.jit.trace(net, torch.randn(4, 8))
    draw = torch.Generator().manual_seed(0)
    data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(12, 16, 8, generator=draw)]
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return {"model": net, "data": data, "criterion": nn.MSELoss(), "optimizer": optimizer}


def trace():
    return build("trace")


def sick_script():
    return build(sick=True)


def sick_trace():
    return build("trace", sick=True)


if __name__ == "__main__":
    parts = globals()[sys.argv[1]]()
    for x, y in parts["data"]:
        loss = parts["criterion"](parts["model"](x), y)
        parts["optimizer"].zero_grad()
        loss.backward()
        parts["optimizer"].step()
        print(loss.item())
"""
JSON = ("--output-format", "json")
LOG = TRAINING.splitlines().index("            h = h + (h.mean() - 20.0).log()") + 1
CALL = TRAINING.splitlines().index('        loss = parts["criterion"](parts["model"](x), y)') + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINING)
    # a file without a function `build` is a script
    (tmp_path / "main.py").write_text(TRAINING.replace("build", "parts_of"))
    return tmp_path


@pytest.mark.parametrize("entry", ["build", "trace"])
def test_a_healthy_recipe_is_examined_as_any_other(folder: Path, entry: str) -> None:
    options = ("--stats", "--trace-steps", "2", "--steps", "12")
    report = report_of(nanodoc("run", f"train.py:{entry}", *options, *JSON, cwd=folder))
    assert (report["verdict"], report["run"]["steps_run"]) == ("nothing found", 12)


@pytest.mark.parametrize("entry", ["sick_script", "sick_trace"])
def test_the_line_is_that_of_the_source(folder: Path, entry: str) -> None:
    report = report_of(nanodoc("run", f"train.py:{entry}", *JSON, cwd=folder))
    first = report["findings"][0]
    assert (first["code"], first["culprit"]["location"]["line"]) == ("ND201", LOG)


@pytest.mark.parametrize("entry", ["parts_of", "trace"])
def test_a_healthy_script_is_left_as_it_is(folder: Path, entry: str) -> None:
    bare = python("main.py", entry, cwd=folder)
    watched = nanodoc("run", "main.py", "--", entry, cwd=folder)
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout), watched.stderr
    assert "verdict: nothing found" in watched.stderr


@pytest.mark.parametrize(("entry", "line"), [("sick_script", LOG), ("sick_trace", CALL)])
def test_a_sick_script_is_told_where(folder: Path, entry: str, line: int) -> None:
    shown = (*JSON, "--output", "report.json")
    nanodoc("run", *shown, "main.py", "--", entry, cwd=folder)
    first = json.loads((folder / "report.json").read_text())["findings"][0]
    assert (first["code"], first["culprit"]["location"]["line"]) == ("ND201", line)
