"""Snapshots: written on a trip, opened safely, replayed to the same diagnosis."""

from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import nanodoc, report_of

SICK = """
import dataclasses, random
import torch

@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    name: str

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop, self.norm = torch.nn.Linear(3, 4, bias=False), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(4)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        h = self.drop(self.linear(x)).pow(2).sum(1)
        return torch.sqrt(h) + self.norm(self.linear(x)).sum(1) * random.random()

def build():
    torch.manual_seed(0)
    model = Model()
    data = [Batch(torch.randn(4, 3), "a"), Batch(torch.randn(4, 3), "b"), Batch(torch.zeros(4, 3), "c")]
    return {"model": model, "loss_fn": lambda m, b: m(b.x).mean(), "data": data, "optimizer": torch.optim.Adam(model.parameters())}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "train.py").write_text(SICK)
    report = report_of(nanodoc("run", "train.py:build", "--output-format", "json", cwd=folder))
    assert report["artifacts"]["snapshot"] == "nanodoc-out/nanodoc-step2.pt"
    return folder


@pytest.fixture
def snapshot(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "nanodoc-out/nanodoc-step2.pt"


def test_it_holds_only_tensors_and_plain_types(snapshot: Path) -> None:
    content = torch.load(snapshot, weights_only=True)
    assert content["step"] == 2
    assert content["entrypoint"] == "train.py:build"
    assert set(content) >= {"batches", "rng", "model", "optimizers", "config"}


def test_replay_gives_the_same_diagnosis_bitwise(snapshot: Path, tmp_path: Path) -> None:
    run = report_of(nanodoc("run", "train.py:build", "--output-format", "json", cwd=tmp_path))
    again = report_of(
        nanodoc("replay", "nanodoc-out/nanodoc-step2.pt", "--output-format", "json", cwd=tmp_path)
    )
    assert again["run"]["reproduced"] == "bitwise"
    assert [f["fingerprint"] for f in again["findings"]] == [
        f["fingerprint"] for f in run["findings"]
    ]
    assert again["findings"][0]["name"] == "infinite-gradient"
    assert again["run"]["command"] == "replay"


def test_an_earlier_snapshot_is_never_overwritten(snapshot: Path, tmp_path: Path) -> None:
    before = snapshot.read_bytes()
    report = report_of(nanodoc("run", "train.py:build", "--output-format", "json", cwd=tmp_path))
    assert report["artifacts"]["snapshot"] == "nanodoc-out/nanodoc-step2-2.pt"
    assert snapshot.read_bytes() == before


def test_a_bare_snapshot_needs_an_entrypoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\ndef build():\n    m = torch.nn.Linear(2, 1)\n    return {'model': m, "
        "'loss_fn': lambda m, b: (m(b[0]).squeeze(1) - b[1]).pow(2).mean(), 'data': "
        "[(torch.ones(2, 2), torch.ones(2))]}\n"
    )
    torch.save(
        {
            "x": torch.tensor([[1.0, float("nan")], [0.0, 1.0]]),
            "y": torch.ones(2),
            "state": torch.nn.Linear(2, 1).state_dict(),
        },
        tmp_path / "bare.pt",
    )
    refused = nanodoc("replay", "bare.pt", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--entrypoint" in refused.stderr
    report = report_of(
        nanodoc(
            "replay",
            "bare.pt",
            "--entrypoint",
            "train.py:build",
            "--output-format",
            "json",
            cwd=tmp_path,
        )
    )
    assert report["findings"][0]["name"] == "non-finite-input"
    assert report["findings"][0]["culprit"]["samples"] == [0]


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_hostile_and_broken_files_are_refused_and_not_executed(
    snapshot: Path, tmp_path: Path
) -> None:
    torch.save({"nanodoc_snapshot": 1, "model": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Evil()))
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "short.pt").write_bytes(snapshot.read_bytes()[:2000])
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    for name, said in [
        ("evil", "contains more than tensors"),
        ("pickle", "not a snapshot"),
        ("text", "not a snapshot"),
        ("short", "truncated"),
        ("other", "is not a nanodoc snapshot"),
    ]:
        done = nanodoc("replay", f"{name}.pt", cwd=tmp_path)
        assert done.returncode == 2, name
        assert said in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "executed").exists()


def test_a_snapshot_may_not_choose_code_outside_the_folder(snapshot: Path, tmp_path: Path) -> None:
    content = torch.load(snapshot, weights_only=True)
    elsewhere = tmp_path.parent / "elsewhere.py"
    elsewhere.write_text("open('executed', 'w')\n")
    content["entrypoint"] = f"{elsewhere}:build"
    torch.save(content, tmp_path / "moved.pt")
    done = nanodoc("replay", "moved.pt", cwd=tmp_path)
    assert done.returncode == 2
    assert "outside this folder" in done.stderr
    assert not (tmp_path / "executed").exists()


def test_a_snapshot_of_another_model_is_one_clear_line(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        SICK.replace("Linear(3, 4", "Linear(3, 5").replace("BatchNorm1d(4)", "BatchNorm1d(5)")
    )
    done = nanodoc("replay", "nanodoc-out/nanodoc-step2.pt", cwd=tmp_path)
    assert done.returncode == 2
    assert "does not match the recipe" in done.stderr


def test_a_failed_write_keeps_the_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanodoc.config import Config
    from nanodoc.pipeline.run import run_training

    (tmp_path / "train.py").write_text(SICK)

    def full(*args: Any, **kwargs: Any) -> Path:
        raise OSError("no space left on device")

    monkeypatch.setattr(sys.modules["nanodoc.pipeline.run_snapshot"], "write_snapshot", full)
    report = run_training("train.py:build", Config())
    assert report.findings[0].name == "infinite-gradient"
    assert report.artifacts["snapshot"] is None
    assert any(what == "snapshot" and "no space left" in why for what, why in report.not_checked)
    assert not list(tmp_path.glob(".nanodoc-*"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("indices", ["a"]),
        ("indices", [float("nan")]),
        ("step", "x"),
        ("step", float("inf")),
        ("run", {"loss": "x"}),
        ("batches", None),
        ("batches", []),
        ("entrypoint", "od\0d.py:x"),
        ("config", {"seed": 2**70}),
        ("config", {"amp": "evil"}),
        ("rng", {}),
        ("rng", {"python": "x", "cpu": torch.zeros(1)}),
        ("attributes", [1]),
        ("attributes", {"": [1]}),
        ("training", torch.zeros(2)),
        ("nanodoc_snapshot", torch.zeros(3)),
        ("torch", torch.zeros(3)),
        ("machine", [1]),
        ("model", 5),
        ("optimizers", 5),
    ],
)
def test_a_strangers_file_is_refused_in_one_line(
    snapshot: Path, tmp_path: Path, key: str, value: Any
) -> None:
    from nanodoc.errors import UsageError
    from nanodoc.replay.snapshot import read_snapshot

    content = torch.load(snapshot, weights_only=True)
    content[key] = value
    path = tmp_path / "hostile.pt"
    torch.save(content, path)
    with pytest.raises(UsageError) as refused:
        read_snapshot(path)
    assert "\n" not in str(refused.value)
