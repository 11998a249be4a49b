"""The sick step of a sharded model on disk, and run again: by one process that has the whole model,
and by as many as there were ranks."""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from nanodoc.errors import UsageError
from nanodoc.replay.shard_files import ShardReader
from nanodoc.replay.shared_index import read_index
from tests.helpers import line_of, nanodoc
from tests.supervise.test_sharded import RANKS, SCRIPT


def sick(folder: Path, *words: str) -> dict[str, Any]:
    """The report of a run of `SCRIPT` in this folder."""
    (folder / "train.py").write_text(SCRIPT)
    told = ("--output-format", "json", "--output", "run.json")
    done = nanodoc("run", *told, "train.py", "--", *words, cwd=folder, ranks=RANKS.get(words[0], 2))
    assert (folder / "run.json").exists(), done.stderr
    report: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return report


def replayed(folder: Path, *options: str, ranks: int = 1) -> dict[str, Any]:
    """The report; with `ranks` as many were started by a launcher."""
    told = ("--output-format", "json", "nanodoc-out/nanodoc-step6", *options)
    done = nanodoc("replay", *told, cwd=folder, ranks=ranks)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("kind", "word", "code", "line", "rank"),
    [
        ("fsdp2", "data", "ND101", 'x[3, 2] = float("nan")', 1),
        ("fsdp2", "op", "ND202", "h = h / (h.sum() * 0)", 0),
        ("tensor", "part", "ND204", "h = self.up(x).relu()", 0),
    ],
)
def test_it_is_replayed_whole_and_by_all(
    tmp_path: Path, kind: str, word: str, code: str, line: str, rank: int
) -> None:
    report = sick(tmp_path, kind, word)
    assert report["artifacts"]["snapshot"] == "nanodoc-out/nanodoc-step6"
    number = line_of(tmp_path / "train.py", line)
    ranks = RANKS.get(kind, 2)
    files = {path.name for path in (tmp_path / "nanodoc-out/nanodoc-step6").iterdir()}
    assert {"index.json", ".metadata", *(f"rank{one}.pt" for one in range(ranks))} <= files
    alone = replayed(tmp_path)
    first = alone["findings"][0]
    assert (first["code"], first["culprit"]["location"]["line"]) == (code, number)
    tried = {one["name"]: one["outcome"] for one in first["experiments"]}
    assert tried["same again"] == "fails again, bitwise the same"
    assert alone["artifacts"]["snapshot"] == f"nanodoc-out/nanodoc-step6/rank{rank}.pt"
    started = {"ranks": ranks} if word != "op" else {}
    together = replayed(tmp_path, *(("--nproc", str(ranks)) if word == "op" else ()), **started)
    first = together["findings"][0]
    assert (first["code"], first["culprit"]["location"]["line"]) == (code, number)
    assert len(together["ranks"]) == ranks
    # each rank comes to its own loss again, bit by bit
    assert "bitwise reproduction" not in [note["what"] for note in together["not_checked"]]
    losses = {one["rank"]: one["loss"] for one in report["ranks"]}
    assert {one["rank"]: one["loss"] for one in together["ranks"]} == losses


@pytest.mark.parametrize(
    ("kind", "why"), [("mesh", "did not reach a step"), ("fsdp1", "one rank cannot run alone")]
)
def test_a_mesh_and_a_fsdp1_are_for_all_ranks(tmp_path: Path, kind: str, why: str) -> None:
    sick(tmp_path, kind, "op")
    done = nanodoc("replay", "nanodoc-out/nanodoc-step6", cwd=tmp_path)
    ranks = RANKS.get(kind, 2)
    assert done.returncode == 2
    assert why in done.stderr
    assert f"nanodoc replay nanodoc-out/nanodoc-step6 --nproc {ranks}" in done.stderr
    first = replayed(tmp_path, ranks=ranks)["findings"][0]
    assert first["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", "h.sum() * 0")


def test_what_all_ranks_together_cannot_do_is_said_before_they_start(tmp_path: Path) -> None:
    sick(tmp_path, "fsdp1", "op")
    for options, said in (
        (("--nproc", "3"), "a step of 2 ranks: --nproc 2"),
        (("--nproc", "2", "--ops"), "leave --nproc out"),
    ):
        done = nanodoc("replay", "nanodoc-out/nanodoc-step6", *options, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.count(said) == 1
    of_another = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "here", "MASTER_PORT": "29500"}
    done = nanodoc("replay", "nanodoc-out/nanodoc-step6", cwd=tmp_path, **of_another)
    assert done.returncode == 2
    assert "WORLD_SIZE=3 is set: start 2 processes" in done.stderr
    done = nanodoc("replay", "nanodoc-out/nanodoc-step6", cwd=tmp_path, RANK="x", WORLD_SIZE="2")
    assert done.returncode == 2
    assert "RANK is 'x'; it must be a whole number" in done.stderr
    torch.save({}, tmp_path / "whole.pt")
    done = nanodoc("replay", "whole.pt", "--nproc", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "for the folder of a sharded step" in done.stderr


GUILTY = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        w = self.b(self.a(x).relu())
        p = w / x.abs().sum(1, keepdim=True)
        return p.log_softmax(1)

net = Net()
for module in (net.a, net.b, net):
    fully_shard(module)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = torch.randn(400, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
if dist.get_rank() == 1:
    data[234] = 0.0
pairs = torch.utils.data.TensorDataset(data, data.sum(1).gt(0).long())
loader = torch.utils.data.DataLoader(pairs, batch_size=16, shuffle=True)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.nll_loss(net(x), y)
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_one_process_finds_the_sample_and_tries_the_fix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GUILTY)
    told = ("--output-format", "json", "--output", "run.json", "-v")
    nanodoc("run", *told, "train.py", cwd=tmp_path, ranks=2)
    report = json.loads((tmp_path / "run.json").read_text())
    first = report["findings"][0]
    line = line_of(tmp_path / "train.py", "p = w / x.abs()")
    assert (first["code"], first["culprit"]["location"]["line"]) == ("ND202", line)
    assert first["culprit"]["dataset_indices"] == [234]
    assert first["fixes"][0]["verified"]
    tried = {row["name"]: row["outcome"] for row in first["experiments"]}
    assert tried["the batch without it"] == "passes"
    assert tried["float64"] == "not run: the parameters are sharded"
    assert "experiments and fixes" not in [row["what"] for row in report["not_checked"]]
    assert report["findings"][1]["code"] == "ND801"
    assert report["run"]["world_size"] == 2
    # what was tried left nothing behind
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "run.json", "nanodoc-out"}
    assert {path.name for path in (tmp_path / "nanodoc-out").iterdir()} == {
        *(".gitignore", "rank0", "rank1"),
        Path(report["artifacts"]["snapshot"]).name,
    }


# -- a folder from a stranger ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As one rank writes it."""
    tensors = {"model.a": torch.arange(6.0).reshape(2, 3), "optimizer0.0.exp_avg": torch.ones(2, 3)}
    path = tmp_path / "nanodoc-out/nanodoc-step3"
    written(path, tensors)
    return path


def written(folder: Path, tensors: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="ignore"):  # torch asks whether one process is meant
        save(tensors, storage_writer=FileSystemWriter(folder), no_dist=True)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


def described(folder: Path) -> Any:
    return pickle.loads((folder / ".metadata").read_bytes())


def rewritten(folder: Path, metadata: Any) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_folder_of_ours_is_read(folder: Path) -> None:
    assert ShardReader(folder).tensors == {
        "model.a": (torch.Size([2, 3]), torch.float32),
        "optimizer0.0.exp_avg": (torch.Size([2, 3]), torch.float32),
    }


def test_code_in_the_description_does_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    metadata = described(folder)
    metadata.planner_data = Evil()
    for content in (Evil(), metadata):
        rewritten(folder, content)
        with pytest.raises(UsageError, match="was not opened"):
            ShardReader(folder)
    assert not (folder / "pwned").exists()


def test_files_outside_of_the_folder_are_not_read(folder: Path) -> None:
    for named in ("../secret", "/etc/passwd", "__0_0.distcp/../../x", ".metadata"):
        metadata = described(folder)
        for place in metadata.storage_data.values():
            place.relative_path = named
        rewritten(folder, metadata)
        with pytest.raises(UsageError):
            ShardReader(folder)


def test_values_that_are_no_tensors_are_refused(folder: Path) -> None:
    """torch would read them with a pickle of their own."""
    written(folder, {"model.a": torch.ones(2), "b": Evil()})
    with pytest.raises(UsageError):
        ShardReader(folder)


def test_a_part_that_unpacks_to_more_is_refused(folder: Path) -> None:
    part = io.BytesIO()
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * 100_000)
    (folder / "__0_0.distcp").write_bytes(part.getvalue())
    metadata = described(folder)
    for place in metadata.storage_data.values():
        place.offset, place.length = 0, len(part.getvalue())
    rewritten(folder, metadata)
    with pytest.raises(UsageError, match="compressed"):
        ShardReader(folder)


def test_an_error_of_several_lines_is_told_in_one(folder: Path) -> None:
    (folder / ".metadata").write_bytes(b"P0\n.")  # torch and pickle say on two lines what it lacks
    with pytest.raises(UsageError, match="persistent") as refused:
        ShardReader(folder)
    assert "\n" not in str(refused.value)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_folder_is_refused_in_one_line(folder: Path, data: st.DataObject) -> None:
    path = folder / data.draw(st.sampled_from([".metadata", "__0_0.distcp"]))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    said = ""
    try:
        ShardReader(folder)
    except UsageError as error:
        said = str(error)
    finally:
        path.write_bytes(whole)
    assert "\n" not in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"nanodoc_sharded": 1}',
        "[" * 100_000,
        '{"nanodoc_sharded": 1, "ranks": 1e9}',
    ],
)
def test_a_broken_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(UsageError):
        read_index(tmp_path)
