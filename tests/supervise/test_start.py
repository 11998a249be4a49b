"""The process of a training is started before the command line is read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanodoc.supervise import start
from tests.helpers import fresh_nanodoc, gone

COLLECTED = """
import gc
import torch

class Noisy:
    def __init__(self, name):
        self.name, self.itself = name, self
    def __del__(self):
        print("deleted", self.name)

print(gc.isenabled(), gc.get_threshold())
kept = Noisy("at the end")
Noisy("by the collector")
gc.collect()
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for _ in range(3):
    optimizer.zero_grad()
    weight.square().sum().backward()
    optimizer.step()
print(weight.tolist())
"""


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--steps", "0"), ("--version",)])
def test_a_wrong_command_line_leaves_no_process(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('never run')")
    # returns when nobody holds its stdout any more
    done = fresh_nanodoc("run", *arguments, "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_it_is_taken_once_and_only_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "_early", None)
    start.start_early()
    early = start._early
    assert early is not None
    taken = start.start(os.environ)
    assert taken is early
    start.start_early()
    other = start.start({**os.environ, "CUDA_LAUNCH_BLOCKING": "1"})
    assert other is not early
    assert start._early is None
    for child in (taken, other):
        child.dropped()
        assert gone(child.process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends it")
def test_it_ends_with_its_parent() -> None:
    code = (
        "import os, signal\n"
        "from nanodoc.supervise.start import ChildProcess\n"
        "print(ChildProcess(os.environ).process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False)
    assert gone(int(done.stdout))


def test_garbage_is_collected_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(COLLECTED)
    watched = fresh_nanodoc("run", "train.py", cwd=tmp_path)
    bare = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert watched.stdout == bare.stdout, watched.stderr
    assert "deleted by the collector" in bare.stdout
    assert "deleted at the end" in bare.stdout


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    """The child ends before it has read its job, which may be larger than a pipe holds."""
    broken = tmp_path / "elsewhere" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch.so: not found')")
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(1))")
    done = subprocess.run(
        [sys.executable, "-m", "nanodoc", "run", "train.py", "--", "x" * 100_000],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{broken.parent}{os.pathsep}{Path.cwd()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "internal error: ImportError: libtorch.so: not found" in done.stderr
    assert "Traceback" not in done.stderr
