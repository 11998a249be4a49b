"""The diagnosis of trainings on a device: mixed precision, checkpoints, custom functions, several
devices in one model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nanodoc.config import Config
from nanodoc.pipeline.check_grad_graph import check_grad_graph
from nanodoc.pipeline.run import run_training
from nanodoc.report.report import Report
from tests.accelerator.device import sim
from tests.accelerator.recipes import RECIPES
from tests.helpers import marked


@pytest.fixture(autouse=True)
def _recipes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPES)


def run(name: str, **options: object) -> Report:
    return run_training(f"train.py:{name}", Config(device="sim", **options))  # type: ignore[arg-type]


def line(report: Report) -> int | None:
    where = report.findings[0].culprit.location
    return where.line if where is not None else None


@pytest.mark.parametrize("name", ["plain", "checkpointed", "reentrant"])
def test_a_backward_birth_leads_to_the_users_line(name: str) -> None:
    report = run(name)
    first = report.findings[0]
    assert (first.name, first.phase, line(report)) == (
        "infinite-gradient",
        "backward",
        marked("train.py", "root"),
    )
    assert first.culprit.samples == (1,)
    assert report.run.reproduced == "bitwise"


def test_a_custom_functions_backward_is_the_users_own_line() -> None:
    report = run("custom")
    assert (report.findings[0].phase, line(report)) == ("backward", marked("train.py", "inverse"))


def test_a_scaler_calibrates_on_the_device() -> None:
    """found_inf is on the device, the first steps are skipped, and that is no finding."""
    report = run("overflowing")
    assert report.findings == ()
    assert report.vitals.calibration_skips > 0
    assert report.vitals.scales[-1] < report.vitals.scales[0]


def test_a_model_on_two_devices_stays_there() -> None:
    report = run("halves")
    assert [finding.name for finding in report.findings] == []
    assert report.verdict == "nothing found"


def test_a_birth_on_the_second_of_two_devices() -> None:
    report = run("poisoned_halves")
    first = report.findings[0]
    assert (line(report), first.culprit.op) == (marked("train.py", "halves"), "aten.log.default")
    told = {row["name"]: row["outcome"] for row in first.experiments}
    # the code names its devices: it can't run elsewhere
    assert "several devices by name" in str(told["on the CPU"])


def test_a_tensor_left_on_the_host_is_named() -> None:
    report = run("forgetful")
    first = report.findings[0]
    assert (first.name, line(report)) == ("device-mismatch", marked("train.py", "meets"))
    told = " ".join(str(value) for _, value in first.evidence)
    assert "cpu [4]" in told


def test_float64_where_the_device_has_none() -> None:
    sim.configure({"SIM_WITHOUT_FLOAT64": "1"})
    from nanodoc.accelerator import has_float64, widest

    has_float64.cache_clear(), widest.cache_clear()
    try:
        first = run("plain", frames=True).findings[0]
    finally:
        has_float64.cache_clear(), widest.cache_clear()
    told = {row["name"]: row["outcome"] for row in first.experiments}
    assert told["float64"] == "not run: sim has no float64"
    assert told["on the CPU"] == "fails too"  # it stands in


def test_frames_and_statistics_on_a_device() -> None:
    report = run("overflowing", frames=True, stats=True)
    assert all(
        tensor.absmax is not None
        for frame in report.frames[0].frames
        for tensor in frame.tensors
        if tensor.dtype in ("float16", "float32")
    )
    assert report.stats is not None
    assert report.stats.parameters


def test_the_gradient_graph_on_a_device() -> None:
    here, there = (
        check_grad_graph("train.py:well", Config(device=device)) for device in ("sim", "cpu")
    )
    assert here.graph is not None
    assert there.graph is not None
    assert [(p.name, p.state) for p in here.graph.parameters] == [
        (p.name, p.state) for p in there.graph.parameters
    ]
    assert here.graph.edges == there.graph.edges


def test_memory_of_the_device_is_reported() -> None:
    report = run("well")
    assert report.vitals.peak_memory == torch.accelerator.max_memory_allocated(0)
    assert report.run.device == "sim:0 (Simulated accelerator)"
