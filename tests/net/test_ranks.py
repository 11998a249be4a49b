"""Real launches with gloo on this machine: ranks that are fine, die, hang, never come or run
another torch, and what is said of them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from nanodoc.net.supervisor import process_ended

QUICK = ("--sizes", "1", "--output-format", "json")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node")


def started(*arguments: str, **variables: object) -> subprocess.Popen[str]:
    """A process of this Python without the variables of an outer launcher, and with a session of
    its own so that all of it can be counted."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_"))
    }
    environment = {
        **kept,
        "OMP_NUM_THREADS": "1",
        **{key: str(value) for key, value in variables.items()},
    }
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def by_hand(
    rank: int, world_size: int, port: int, *arguments: str, **variables: object
) -> subprocess.Popen[str]:
    place = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return started("-m", "nanodoc", "net", *arguments, **place, **variables)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; nothing of its session is left behind."""
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert members(process.pid) == [], "a process was left behind"
    return process.returncode, out, err


def members(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(folder.name))
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launched(ranks: int, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The check under torchrun: exit code, report, stderr."""
    code, out, err = ended(
        started(*TORCHRUN, str(ranks), "-m", "nanodoc", "net", *QUICK, *arguments)
    )
    assert out, err
    # json.loads fails on anything that is printed twice or between
    return code, json.loads(out), err


def states(report: Mapping[str, Any]) -> list[str]:
    return [one["state"] for one in report["ranks"]]


def test_all_ranks_are_ok() -> None:
    code, report, err = launched(3)
    assert code == 0, err
    assert report["verdict"] == "healthy"
    assert report["backend"] == "gloo"
    assert states(report) == ["OK"] * 3
    assert {one["state"] for one in report["checks"]} == {"OK"}
    small, large = report["all_reduce"]
    assert small["bytes"] == 8
    assert large["bytes"] == 2**20
    assert large["algorithm_bandwidth"] == pytest.approx(2**20 / large["seconds"])
    assert large["bus_bandwidth"] == pytest.approx(large["algorithm_bandwidth"] * 4 / 3)
    assert len({one["facts"]["pid"] for one in report["ranks"]}) == 3
    assert not [one for one in report["problems"] if one["state"] == "FAILED"]


def test_a_rank_that_dies_is_named() -> None:
    code, report, _ = launched(4, "--drill", "2:die@all_reduce", "--timeout", "20")
    assert code == 1
    assert report["verdict"] == "failed"
    assert states(report) == ["waited", "waited", "FAILED", "waited"]
    assert report["ranks"][2]["text"] == "its process ended in all_reduce (last seen: barrier OK)"
    assert "for rank 2" in report["ranks"][0]["text"]
    assert {one["name"]: one["state"] for one in report["checks"]}["all_reduce"] == "FAILED"
    assert {one["name"]: one["state"] for one in report["checks"]}["barrier"] == "OK"
    assert any("rank 2" in one["text"] and one["state"] == "FAILED" for one in report["problems"])


def test_where_rank_0_dies_the_next_one_reports() -> None:
    code, report, _ = launched(2, "--drill", "0:die@broadcast", "--timeout", "20")
    assert code == 1
    assert states(report) == ["FAILED", "waited"]
    assert "its process ended in broadcast" in report["ranks"][0]["text"]
    assert any("rank 1 reports" in one["text"] for one in report["problems"])


def test_a_rank_that_hangs_is_named_within_the_timeout() -> None:
    code, report, _ = launched(2, "--drill", "1:hang@barrier", "--timeout", "3")
    assert code == 1
    assert states(report) == ["waited", "FAILED"]
    assert (
        report["ranks"][1]["text"]
        == "never entered barrier: no answer within 3 s (last seen: connect OK)"
    )
    assert report["ranks"][0]["text"] == "in barrier for rank 1 (last seen: connect OK)"


def started_alone(ranks: int, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """The check without torchrun."""
    code, out, err = ended(
        started("-m", "nanodoc", "net", "--nproc", str(ranks), *QUICK, *arguments)
    )
    assert out, err
    return code, json.loads(out), err


def test_rank_0_itself_hangs_and_still_reports() -> None:
    code, report, _ = started_alone(2, "--drill", "0:hang@ring", "--timeout", "3")
    assert code == 1
    assert states(report) == ["FAILED", "waited"]
    assert "never entered ring" in report["ranks"][0]["text"]


def test_a_slow_rank_another_torch_and_wrong_numbers() -> None:
    """None of these ends the check: they are all found in one run."""
    summed = ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "ring"]
    drills = [f"0:wrong@{check}" for check in summed] + ["1:slow@barrier", "1:version"]
    code, report, err = started_alone(2, *(text for drill in drills for text in ("--drill", drill)))
    assert code == 1, err
    assert [one["name"] for one in report["checks"] if one["state"] == "FAILED"] == summed
    said = report["ranks"][1]["text"].split("; in ")
    assert [text.removeprefix("in ").partition(":")[0] for text in said] == summed
    assert "what rank 0 sent is wrong: 1000 instead of 0" in report["ranks"][1]["text"]
    (slow,) = [
        one
        for one in report["problems"]
        if one["text"].startswith("rank 1") and "barrier" in one["text"]
    ]
    assert slow["state"] == "note"
    (version,) = [one for one in report["problems"] if one["state"] == "FAILED"]
    assert "+drill" in version["text"]


def test_a_missing_rank_is_named_by_those_who_came() -> None:
    port = free_port()
    here = [by_hand(rank, 3, port, "--timeout", "3") for rank in (0, 2)]
    (code, out, _), (other_code, other_out, _) = (ended(process) for process in here)
    assert (code, other_code) == (1, 1)
    assert other_out == ""
    assert "rank 1 of 3 never arrived at 127.0.0.1" in out
    assert "ranks 0, 2 on " in out
    assert "never arrived within 3 s" in next(
        line for line in out.splitlines() if line.startswith("  rank 1")
    )


def test_without_rank_0_there_is_one_line_and_no_traceback() -> None:
    code, out, err = ended(by_hand(1, 2, free_port(), "--timeout", "1"))
    assert code == 1
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("nanodoc: rank 1 of 2 on ")
    assert "no answer from rank 0 at 127.0.0.1" in line


def test_rank_0_is_missing_and_torchruns_store_is_there() -> None:
    """The lowest rank that came reports for all."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    here = [
        by_hand(rank, 3, store.port, *QUICK, "--timeout", "2", TORCHELASTIC_USE_AGENT_STORE=True)
        for rank in (1, 2)
    ]
    (code, out, _), (other_code, other_out, _) = (ended(process) for process in here)
    assert (code, other_code, other_out) == (1, 1, "")
    assert states(json.loads(out)) == ["FAILED", "waited", "waited"]
    assert json.loads(out)["ranks"][0]["text"] == "never arrived within 2 s"


def test_the_text_has_a_line_for_each_rank_and_check() -> None:
    code, out, err = ended(
        started("-m", "nanodoc", "net", "--nproc", "2", "--sizes", "1", "--verbose")
    )
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("nanodoc ")
    assert "2 ranks on 1 host · gloo" in lines[0]
    assert [line.split()[1] for line in lines if line.startswith("  rank")] == ["0", "1"]
    assert [line.split()[1] for line in lines if line.startswith("  ✓")][:4] == [
        "device",
        "links",
        "connect",
        "barrier",
    ]
    assert "verdict: healthy (2 of 2 ranks OK)" in out
    assert "NCCL wrote no log: the backend was gloo" in out


def test_an_interrupt_reports_what_is_known() -> None:
    process = started(
        "-m",
        "nanodoc",
        "net",
        "--nproc",
        "2",
        *QUICK,
        "--drill",
        "1:hang@barrier",
        "--timeout",
        "50",
    )
    deadline = time.monotonic() + 50
    while len(members(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = [pid for pid in members(process.pid) if pid != process.pid]
    # a rank catches the signal once it has something to report
    while not all(catches(pid, signal.SIGINT) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, err
    assert json.loads(out)["verdict"] == "failed"


def catches(pid: int, number: int) -> bool:
    """By a handler other than Python's own for SIGINT: a rank catches SIGTERM, too, from the same
    moment on."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(
        next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16
    )
    return bool(caught >> (number - 1) & 1) and bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_corpse_counts_as_ended(child: subprocess.Popen[bytes]) -> None:
    assert not process_ended(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not collected
    assert process_ended(child.pid)
    child.wait()
    assert process_ended(child.pid)
