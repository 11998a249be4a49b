"""The benchmarks run, in the smallest way; what they measure is not asserted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import printing
from benchmarks.arguments import parse
from benchmarks.devices import ROOT
from benchmarks.gpu_check import counts, ratios
from benchmarks.growth import graph_growth, growth
from benchmarks.long_run import long_run
from benchmarks.memory import peak_memory
from benchmarks.models import ManyModules, mlp
from benchmarks.recipes import MODELS
from benchmarks.scripts import script
from benchmarks.sharded import sharded
from benchmarks.start_up import WAYS, start_up
from benchmarks.timing import timed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other on a busy machine make a second of this a minute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_each_way_runs_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    row = timed("gpt-amp", CPU, repeats=1, length=0.0)
    printing.print_model("gpt-amp", row)
    assert row["ratios"].keys() >= {"bare", "monitored", "traced", "frames", "monitored own step"}
    assert f"{row['ops']} ops" in capsys.readouterr().out


@pytest.mark.slow
def test_growth_is_told_by_length_and_by_depth(capsys: pytest.CaptureFixture[str]) -> None:
    per_op, graph = growth(CPU, lengths=(30, 2_000)), graph_growth(CPU, depths=(2,))
    printing.print_growth(per_op)
    printing.print_graph(graph)
    assert graph["2"]["ops"] == 43
    told = capsys.readouterr().out
    assert "µs per op at 30 and 2 000 ops" in told
    assert "2 layers     43 ops" in told


@pytest.mark.skipif(sys.platform != "linux", reason="the CPU's peak is read from /proc")
def test_memory_is_compared_in_processes_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # put back after the test
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    peaks = peak_memory("gpt-amp", CPU, ways=("bare",), repeats=1)
    assert peaks == {"bare": 1.0}
    printing.print_memory({**peaks, "monitored": 1.25})
    assert "peak memory  monitored 1.250" in capsys.readouterr().out


def test_whole_processes_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    ways = {way: WAYS[way] for way in ("python", "nanodoc run --in-process")}
    found = start_up(repeats=1, ways=ways)
    printing.print_start_up(found)
    assert found.keys() == {"python_seconds", "nanodoc run --in-process"}
    assert "over `python train.py`: python_seconds" in capsys.readouterr().out


@pytest.mark.slow
def test_a_script_is_timed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    row = script("mlp-0.5ms", repeats=1, steps=24)
    printing.print_script(row)
    assert row["ratios"].keys() == {"median", "mean", "peak", "again"}
    assert "as a script  bare" in capsys.readouterr().out


@pytest.mark.slow
def test_a_long_run_is_told_by_its_quarters(capsys: pytest.CaptureFixture[str]) -> None:
    quarters = long_run(400, CPU)
    printing.print_long_run(quarters)
    assert list(quarters) == ["100", "200", "300", "400"]
    assert "to step    400" in capsys.readouterr().out


def test_large_models_have_what_their_names_say() -> None:
    with torch.device("meta"):
        modules = len(list(ManyModules(2000).modules()))
        bytes_ = sum(4 * p.numel() for p in mlp(4096, 9).parameters())
    assert modules > 20_000
    assert 500 < bytes_ / 2**20 < 560


def test_options_are_read_as_the_script_gives_them() -> None:
    given = parse("", ["--models", "conv,lstm", "--no-memory", "--max-monitored", "1.1"])
    assert given.models == ("conv", "lstm")
    assert (given.scripts, given.long_steps) == (True, 20_000)
    assert (given.memory, given.max_monitored, str(given.output)) == (False, 1.1, "bench.json")
    assert parse("", []).models == MODELS


def test_the_script_finds_the_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench"), "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "--max-monitored" in done.stdout


def test_a_check_that_did_not_finish_is_told_as_that(tmp_path: Path) -> None:
    assert ratios(tmp_path / "bench-gpu.json", "cuda") == "not finished"
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="5" failures="1" skipped="2"/></testsuites>'
    )
    assert counts(tmp_path / "tests.xml") == "2 passed, 1 failed, 2 skipped"
    assert counts(tmp_path / "none.xml") == "not finished"


@pytest.mark.slow
def test_two_groups_of_ranks_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    row = sharded(turns=2, steps=1, untimed=1)
    printing.print_sharded(row)
    assert row["bare_ms"] > 0
    assert "FSDP2 on two ranks" in capsys.readouterr().out
