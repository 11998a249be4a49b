"""Where files may not grow (`ulimit -f`), the report said of the snapshot what torch's C++ says of
its own positions; and a limit below what the processes share was an internal error."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
import torch

from nanodoc.replay.snapshot import save


def test_a_snapshot_that_does_not_fit(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"^it exceeds the file-size limit \(ulimit -f\)$"):
            save({"weights": torch.zeros(100_000)}, tmp_path / "snapshot.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, mode: str) -> IO[bytes]:
        os.close(handle)
        return Path("/dev/full").open("wb", 0)

    monkeypatch.setattr("nanodoc.replay.snapshot.os.fdopen", full)
    with pytest.raises(OSError, match=r"^No space left on device$"):
        save({"weights": torch.zeros(100_000)}, tmp_path / "snapshot.pt")


def test_nothing_can_be_shared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(5)")
    done = subprocess.run(
        [sys.executable, "-m", "nanodoc", "run", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000)),
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("nanodoc: can't share memory with the training process: ")
    assert "ulimit -f" in done.stderr
    assert done.stderr.count("\n") == 1
