"""Trainings that run by themselves and failed under nanodoc: command lines parsed in build(), meta
tensors, deep batches, sys.exit()."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.helpers import nanodoc, report_of

TRAIN = """
import argparse, sys
import torch
from torch import nn

def recipe(model, data, **more):
    return {"model": model, "loss_fn": lambda m, b: m(b).pow(2).mean(), "data": data,
            "optimizer": torch.optim.SGD([p for p in model.parameters() if not p.is_meta], lr=0.1), "max_steps": 6, **more}

def batches():
    return [torch.randn(4, 3) for _ in range(6)]

def parses():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.parse_args()
    def step(model, batch, optimizer):
        parser.parse_args()
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss
    return {**{k: v for k, v in recipe(nn.Linear(3, 1), batches()).items() if k != "loss_fn"}, "train_step": step}

class WithTwin(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 2)
        self.shapes = nn.Linear(3, 2, device="meta")

    def forward(self, x):
        return self.body(x)

def twin(): return recipe(WithTwin(), batches())

class Unloaded(WithTwin):
    def forward(self, x):
        return self.body(x) + self.shapes(x)  # never loaded

def unloaded(): return recipe(Unloaded(), batches())

def deep():
    tree = []
    for _ in range(3000):
        tree = [tree]
    return recipe(nn.Linear(3, 1), [{"x": x, "tree": tree} for x in batches()], loss_fn=lambda m, b: m(b["x"]).pow(2).mean())

def leaves_in_the_step():
    calls = [0]
    def loss_fn(model, batch):
        calls[0] += 1
        if calls[0] == 4:
            sys.exit(0)
        return model(batch).pow(2).mean()
    return recipe(nn.Linear(3, 1), batches(), loss_fn=loss_fn)

def leaves_with_the_data():
    class Data:
        def __iter__(self):
            yield from batches()[:3]
            sys.exit()
    return recipe(nn.Linear(3, 1), Data())

def workers():
    data = torch.utils.data.DataLoader(torch.randn(64, 3), batch_size=4, num_workers=2)
    return recipe(nn.Linear(3, 1), data)

def leaves_in_anger():
    def loss_fn(model, batch):
        sys.exit("no GPU")
    return recipe(nn.Linear(3, 1), batches(), loss_fn=loss_fn)
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("parses", 6),
        ("twin", 6),
        ("deep", 6),
        ("leaves_in_the_step", 3),
        ("leaves_with_the_data", 3),
    ],
)
def test_it_runs_with_us_too(tmp_path: Path, name: str, steps: int) -> None:
    done = nanodoc("run", f"train.py:{name}", "--output-format", "json", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(done)
    assert (report["findings"], report["run"]["steps_run"]) == ([], steps)
    assert ("called sys.exit" in str(report["not_checked"])) == name.startswith("leaves")


def test_a_layer_left_on_the_meta_device_is_named(tmp_path: Path) -> None:
    report = report_of(nanodoc("run", "train.py:unloaded", "--output-format", "json", cwd=tmp_path))
    finding = report["findings"][0]
    assert (finding["code"], finding["culprit"]["module"]) == ("ND706", "shapes")
    assert "never loaded" in finding["culprit"]["location"]["code"]


def test_leaving_with_an_error_is_a_failure(tmp_path: Path) -> None:
    report = report_of(
        nanodoc("run", "train.py:leaves_in_anger", "--output-format", "json", cwd=tmp_path)
    )
    assert report["findings"][0]["title"] == "SystemExit: no GPU"


def test_no_folder_of_a_worker_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """multiprocessing's folders stayed where the loader's iterator lived until the process
    ended."""
    with tempfile.TemporaryDirectory() as folder:  # a short path: workers make sockets below it
        monkeypatch.setenv("TMPDIR", folder)
        done = nanodoc("run", "train.py:workers", cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert not list(Path(folder).glob("pymp-*"))
