"""What a reviewer broke in replays of scripts: values that a snapshot cannot hold, files that pick
what runs, a trainer's own arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.replay import replay_snapshot
from nanodoc.pipeline.snapshot_content import is_own_code, trusted_file, trusted_module
from nanodoc.replay.plain_values import like, plain
from tests.helpers import nanodoc, report_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

FLIPPED = """
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def rows():
    for number in range(8):
        yield X[:8].numpy()[::-1], number
for x, number in rows():
    optimizer.zero_grad()
    loss = model(torch.tensor(x.copy())).pow(2).mean() / (4 - number)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6).astype(">f4"),
        np.float32(1.5),
        np.arange(5, dtype="uint8"),
        np.array([True, False]),
    ],
)
def test_arrays_come_back(array: np.ndarray) -> None:
    again = like(plain({"a": array}, arrays=True), None)["a"]
    assert np.array_equal(again, array)
    assert again.dtype == array.dtype.newbyteorder("=")


def test_a_flipped_array_among_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + FLIPPED)
    report = watched(path)
    assert report.findings[0].name == "division-by-zero"
    snapshot = report.artifacts["snapshot"]
    assert snapshot is not None
    assert replay_snapshot(Path(snapshot), Config(device="cpu")).run.reproduced == "bitwise"


@pytest.mark.parametrize(
    "value",
    [
        {"__nanodoc_fields__": [1, 2]},
        {"__nanodoc_array__": torch.zeros(2, dtype=torch.bfloat16), "dtype": "float999"},
    ],
)
def test_values_of_no_use_are_one_line(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + FLIPPED)
    content = torch.load(str(watched(path).artifacts["snapshot"]), weights_only=True)
    content["script"]["variables"]["x"] = value
    torch.save(content, "bad.pt")
    with pytest.raises(UsageError):
        replay_snapshot(Path("bad.pt"), Config(device="cpu"))


def test_only_code_of_ones_own_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timeit").mkdir()  # the standard library's is what would run
    for name in ("timeit", "../x", "os", "a b"):
        with pytest.raises(UsageError, match="not in this folder"):
            trusted_module(name)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text("")
    trusted_module("mine.train")
    environment = tmp_path / "env" / "lib" / "python3.11"
    environment.mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (environment / "timeit.py").write_text("")
    assert not is_own_code(environment / "timeit.py")
    assert is_own_code(tmp_path / "mine" / "train.py")
    with pytest.raises(UsageError):
        trusted_file(Path("x" * 300), "x" * 300, "FILE.py")


TRAINER = """
import torch
from lightning.pytorch import LightningModule

class Module(LightningModule):
    def __init__(self, width):
        super().__init__()
        self.layer, self.n = torch.nn.Linear(4, width), 0
    def training_step(self, batch, index):
        self.n += 1
        return self.layer(batch).pow(2).mean() / float(4 - self.n)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def build(config):
    torch.manual_seed(0)
    data = torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)
    return Module(config["width"]), data
"""


def test_a_trainer_is_built_as_it_was(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "wide.yaml").write_text("recipe:\n  width: 12\n")
    options = ("--config", "wide.yaml", "--steps", "8", "--output-format", "json")
    ran = report_of(nanodoc("run", "train.py:build", *options, cwd=tmp_path))
    snapshot = ran["artifacts"]["snapshot"]
    again = report_of(nanodoc("replay", snapshot, "--output-format", "json", cwd=tmp_path))
    assert again["run"]["reproduced"] == "bitwise"
