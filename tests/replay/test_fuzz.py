"""Snapshots that are broken at random end in a report or in one line; see benchmarks/fuzz.py."""

from __future__ import annotations

import io
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import fuzz
from nanodoc.errors import UsageError
from nanodoc.replay.snapshot import read_snapshot


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return fuzz.sound_snapshots(tmp_path_factory.mktemp("sound"))


def test_a_short_run_finds_no_defect(sound: list[Path]) -> None:
    found = fuzz.fuzz(sound[0].parent, 30, seed=7, sound=sound)
    assert found.defects == []
    assert found.files == 30
    assert 5 < found.opened < 25


def test_a_defect_would_be_found(
    sound: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(path: Path) -> Any:
        return torch.load(path, weights_only=True)["step"]

    monkeypatch.setattr("nanodoc.replay.snapshot.read_snapshot", careless)
    found = fuzz.fuzz(sound[0].parent, 6, seed=7, keep=tmp_path / "kept", sound=sound)
    assert found.defects
    assert len(list((tmp_path / "kept").iterdir())) == len(found.defects)


def _spins(*_: Any) -> None:
    while True:
        pass


@pytest.mark.slow  # a process of its own
@pytest.mark.parametrize("hangs", [_spins, lambda *_: time.sleep(60)], ids=["spins", "sleeps"])
def test_what_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: Callable[..., None]
) -> None:
    monkeypatch.setattr(fuzz, "_run", hangs)
    assert fuzz.command(tmp_path, [], 0.3).code is None


def snapshot(**parts: Any) -> bytes:
    file = io.BytesIO()
    torch.save({"x": torch.zeros(2), "y": torch.zeros(2), "state": {}, **parts}, file)
    return file.getvalue()


def compressed(data: bytes) -> bytes:
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as records,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in records.namelist():
            archive.writestr(name, records.read(name))
    return file.getvalue()


def doubled(times: int) -> Any:
    value: Any = torch.zeros(1)
    for _ in range(times):
        value = [value, value]
    return value


def itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(200):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (compressed(snapshot()), "is compressed"),
        (snapshot(more=doubled(40)), "reference each other too often"),
        (snapshot(more=itself()), "contains itself"),
        (snapshot(more=deep()), "levels deep"),
        (snapshot(more=torch.zeros(1).expand(10**12)), "far larger than the file"),
        (b"\x80\x02" + snapshot(), "is not a snapshot"),
    ],
    ids=["compressed", "shared", "holds itself", "deep", "expanded", "another format"],
)
def test_what_would_unpack_to_more_than_the_file_holds(
    tmp_path: Path, data: bytes, said: str
) -> None:
    path = tmp_path / "s.pt"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=said):
        read_snapshot(path)


def test_what_nanodoc_writes_is_opened(tmp_path: Path) -> None:
    shared = [torch.zeros(3)] * 3
    path = tmp_path / "s.pt"
    path.write_bytes(snapshot(batch=[shared, shared], mask=torch.ones(1).expand(64, 1000)))
    assert read_snapshot(path)["mask"].shape == (64, 1000)
