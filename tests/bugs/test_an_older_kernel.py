"""Kernels before Linux 5.3 (RHEL 8, many clusters) and some sandboxes have no pidfd_open, which
Python offers all the same. Every run there ended in an internal error, its report lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OLDER = """
import ctypes
import os
import struct
import sys

NO_NEW_PRIVS, SECCOMP, FILTER, REFUSED, ENOSYS = 38, 22, 2, 0x00050000, 38


def instruction(code, yes, no, value):
    return struct.pack("HBBI", code, yes, no, value)


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


# every call with number 424 or above came with Linux 5.1 or later, on every architecture
text = ctypes.create_string_buffer(
    instruction(0x20, 0, 0, 0)  # the call's number
    + instruction(0x35, 0, 1, 424)  # not less than that
    + instruction(0x06, 0, 0, REFUSED | ENOSYS)
    + instruction(0x06, 0, 0, 0x7FFF0000)  # allowed
)
program = Program(4, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, ctypes.byref(program), 0, 0):
    sys.exit("no filter of system calls is to be had here")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
SCRIPT = """
import torch

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.rand(64, 1)
x[37] = 0
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for start in range(0, 64, 8):
    batch = x[start : start + 8]
    unit = batch / batch.norm(dim=1, keepdim=True)
    loss = (model(unit) - y[start : start + 8]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def older(tmp_path: Path) -> list[str]:
    """The command of a Python whose kernel is an older one."""
    (tmp_path / "older.py").write_text(OLDER)
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "older.py"]
    known = "import errno, os\ntry: os.pidfd_open(os.getpid())\nexcept OSError as e: print(e.errno)"
    done = subprocess.run([*command, "-c", known], cwd=tmp_path, capture_output=True, text=True)
    if "no filter of system calls" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.stdout == "38\n"
    return command


@pytest.mark.skipif(sys.platform != "linux", reason="filters of system calls are Linux's")
def test_a_sick_training_is_told_and_replayed(tmp_path: Path, older: list[str]) -> None:
    run = [*older, "-m", "nanodoc", "run", "train.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "critical[ND202]: 0/0 is NaN" in done.stderr
    assert "--> train.py:11:" in done.stderr
    (snapshot,) = tmp_path.glob("nanodoc-out/*.pt")
    again = [*older, "-m", "nanodoc", "replay", str(snapshot)]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "ND202" in done.stdout + done.stderr
