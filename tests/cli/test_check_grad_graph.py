"""`nanodoc check-grad-graph` as a user meets it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nanodoc.pipeline.check_grad_graph as graph
from nanodoc.clinic.catalogue import find_patient
from nanodoc.config import Config
from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.report.dot import render_dot
from nanodoc.report.grad_tree import render_tree
from tests.helpers import nanodoc

DEEP = """
import torch
import torch.nn.functional as F
from torch import nn


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(300))
        self.gate, self.spare, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.calls = 0
        self.layers[7].requires_grad_(False)

    def forward(self, x):
        self.calls += 1
        with torch.set_grad_enabled(self.calls % 3 > 0):
            gate = torch.sigmoid(self.gate(x))
        for layer in self.layers:
            x = x + 0.01 * layer(x)
        return self.head(x * gate)


def build():
    torch.manual_seed(0)
    model = Alternating()
    kept = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith("layers.9.")]
    data = [(torch.randn(4, 4), torch.randint(0, 2, (4,))) for _ in range(6)]
    return {
        "model": model, "loss_fn": lambda m, b: F.cross_entropy(m(b[0]), b[1]), "data": data, "optimizer": torch.optim.SGD(kept, lr=0.1)
    }
"""


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(DEEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_the_tree_folds_what_is_alike(deep: Path, golden: Callable[[str, str], None]) -> None:
    report = check_grad_graph("train.py:build", Config(device="cpu", steps=6))
    # norms differ between processors
    golden("grad_tree", re.sub(r"norm [\d.e-]+( … [\d.e-]+)?", "norm N", render_tree(report)))


def test_the_picture(monkeypatch: pytest.MonkeyPatch, golden: Callable[[str, str], None]) -> None:
    patient = find_patient("frozen-features")
    monkeypatch.chdir(Path(patient.entrypoint().rpartition(":")[0]).parent)
    report = check_grad_graph("frozen_features.py:sick", Config(device="cpu"))
    golden("grad_graph", render_dot(report))


@pytest.mark.slow
def test_no_optimizer_ever_steps(deep: Path) -> None:
    from nanodoc.recipe.loader import build_recipe

    before = build_recipe("train.py:build", {}).model.state_dict()
    built: list[torch.nn.Module] = []
    original = graph.run_graph_check

    def spy(recipe: object, *rest: object) -> object:
        built.append(recipe.model)  # type: ignore[attr-defined]
        return original(recipe, *rest)  # type: ignore[arg-type]

    graph.run_graph_check = spy  # type: ignore[assignment]
    try:
        check_grad_graph("train.py:build", Config(device="cpu", steps=3))
    finally:
        graph.run_graph_check = original
    assert all(torch.equal(before[name], value) for name, value in built[0].state_dict().items())


def test_json_says_every_state(deep: Path) -> None:
    done = nanodoc(
        "check-grad-graph",
        "train.py:build",
        "--steps",
        "6",
        "--output-format",
        "json",
        "--fail-on",
        "never",
        cwd=deep,
    )
    assert done.returncode == 0, done.stderr
    graph = json.loads(done.stdout)["graph"]
    by_name = {p["name"]: p for p in graph["parameters"]}
    assert by_name["gate.weight"]["state"] == "intermittent"
    assert [s == "gradient" for s in by_name["gate.weight"]["states"]] == [True, True, False] * 2
    assert by_name["layers.7.0.weight"]["state"] == "frozen"
    assert by_name["layers.9.0.weight"]["optimizers"] == []
    assert by_name["spare.weight"]["state"] == "unused"
    assert by_name["head.weight"]["norm"] > 0


def test_one_module(deep: Path) -> None:
    done = nanodoc(
        "check-grad-graph", "train.py:build", "--module", "head", "--fail-on", "never", cwd=deep
    )
    assert "gate" not in done.stdout.split("\n\n")[0]
    assert "head" in done.stdout


def test_a_module_that_is_not_there(deep: Path) -> None:
    done = nanodoc("check-grad-graph", "train.py:build", "--module", "heads", cwd=deep)
    assert done.returncode == 2
    assert done.stderr.strip() == "nanodoc: the model has no module 'heads'; did you mean 'head'?"


@pytest.mark.parametrize("arguments", [("--steps", "0"), ("--output-format", "svg")])
def test_bad_options_are_one_line(deep: Path, arguments: tuple[str, ...]) -> None:
    done = nanodoc("check-grad-graph", "train.py:build", *arguments, cwd=deep)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_build_that_raises(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "def build():\n    raise ValueError('no data')\n", encoding="utf-8"
    )
    done = nanodoc("check-grad-graph", "train.py:build", cwd=tmp_path)
    assert done.returncode == 1
    assert "ValueError: no data" in done.stdout
