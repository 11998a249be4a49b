"""What a device does to a training: indices that lose it, a kernel that fails, memory that ends.
Each in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accelerator.device import sim
from tests.accelerator.recipes import RECIPES
from tests.helpers import fresh_nanodoc, marked, report_of

pytestmark = pytest.mark.usefixtures("simulated_environment")


@pytest.fixture(autouse=True)
def _recipes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPES)


@pytest.mark.parametrize(
    ("name", "code", "line", "title"),
    [
        ("ids", "ND102", "looks up", "index 50 at [2, 3]"),
        ("labels", "ND103", "compares", "label 3 at [1]"),
        ("observed_ids", "ND102", "looks up", "index 50"),
    ],
)
def test_a_lost_device_is_explained_by_a_look_on_the_cpu(
    tmp_path: Path, name: str, code: str, line: str, title: str
) -> None:
    """The kernel says nothing; the error comes with the next call that waits, which may be a look
    of ours."""
    report = report_of(
        fresh_nanodoc("run", f"train.py:{name}", "--output-format", "json", cwd=tmp_path)
    )
    first = report["findings"][0]
    assert (first["code"], first["step"]) == (code, 5)
    assert first["title"].startswith(title)
    assert first["culprit"]["location"]["line"] == marked(tmp_path / "train.py", line)
    assert first["culprit"]["samples"] == [1 if name == "labels" else 2]
    assert any(
        row["label"] == "on the GPU" and "AcceleratorError" in row["value"]
        for row in first["evidence"]
    )
    assert report["run"]["device"] == "sim:0 (Simulated accelerator)"


def test_an_index_of_the_first_step_is_seen_before_the_device_is_lost(tmp_path: Path) -> None:
    source = RECIPES.replace("data[5][0][2, 3] = 50", "data[0][0][2, 3] = 50")
    (tmp_path / "train.py").write_text(source)
    report = report_of(
        fresh_nanodoc("run", "train.py:ids", "--output-format", "json", cwd=tmp_path)
    )
    first = report["findings"][0]
    assert (first["code"], first["step"]) == ("ND102", 0)
    assert not any(row["label"] == "on the GPU" for row in first["evidence"])


def test_a_kernel_that_fails_for_no_reason_of_the_batchs(
    tmp_path: Path, simulated_environment: pytest.MonkeyPatch
) -> None:
    simulated_environment.setenv("SIM_PLANT", "aten::mm 6")
    done = fresh_nanodoc("run", "train.py:well", "--output-format", "json", cwd=tmp_path)
    first = report_of(done)["findings"][0]
    # where it was noticed is not where it failed
    assert (first["code"], first["culprit"]["location"]) == ("ND701", None)
    assert [(row["name"], row["outcome"]) for row in first["experiments"]] == [
        ("running the batch on the CPU", "passes")
    ]
    assert "passes on the CPU" in first["fixes"][0]["title"]
    assert done.returncode == 1
    assert "internal error" not in done.stderr


def test_what_fills_the_devices_memory(
    tmp_path: Path, simulated_environment: pytest.MonkeyPatch
) -> None:
    simulated_environment.setenv("SIM_MEMORY", str(150 * 2**20))
    report = report_of(
        fresh_nanodoc("run", "train.py:deep", "--output-format", "json", cwd=tmp_path)
    )
    first = report["findings"][0]
    assert (first["code"], first["step"]) == ("ND704", 1)
    assert first["culprit"]["location"]["line"] == marked(tmp_path / "train.py", "grows")
    told = {row["label"]: row["value"] for row in first["evidence"]}
    assert told["parameters"] == "3.01 MiB"
    assert any(
        "grows" in label or f":{marked(tmp_path / 'train.py', 'grows')}" in label for label in told
    )
    assert "kept for backward" in told


def test_a_snapshot_goes_from_the_device_to_the_cpu_and_back(
    tmp_path: Path, simulated_environment: pytest.MonkeyPatch
) -> None:
    there = fresh_nanodoc("run", "train.py:fast", "--output-format", "json", cwd=tmp_path)
    snapshot = report_of(there)["artifacts"]["snapshot"]
    wanted = ("log-of-zero", marked(tmp_path / "train.py", "log"), [1])
    for device in ("sim:1", "cpu"):
        again = report_of(
            fresh_nanodoc(
                "replay", snapshot, "--device", device, "--output-format", "json", cwd=tmp_path
            )
        )
        first = again["findings"][0]
        assert (first["culprit"]["location"]["line"], first["culprit"]["samples"]) == wanted[1:]
        assert again["run"]["device"].startswith(device)
        assert again["run"]["reproduced"] == (
            "bitwise" if device == "sim:1" else again["run"]["reproduced"]
        )
    (tmp_path / snapshot).rename(tmp_path / "moved.pt")
    simulated_environment.delenv("PYTHONPATH")  # a machine without the device
    without = report_of(
        fresh_nanodoc("replay", "moved.pt", "--output-format", "json", cwd=tmp_path)
    )
    assert without["findings"][0]["culprit"]["location"]["line"] == wanted[1]
    here = report_of(
        fresh_nanodoc(
            "run", "train.py:fast", "--device", "cpu", "--output-format", "json", cwd=tmp_path
        )
    )
    simulated_environment.setenv("PYTHONPATH", sim.environment()["PYTHONPATH"])
    back = report_of(
        fresh_nanodoc(
            "replay",
            here["artifacts"]["snapshot"],
            "--device",
            "sim",
            "--output-format",
            "json",
            cwd=tmp_path,
        )
    )
    assert back["findings"][0]["culprit"]["location"]["line"] == wanted[1]
    assert back["run"]["device"] == "sim:0 (Simulated accelerator)"


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("sim:7", "there is no device with index 7"),
        ("cuda", "sees no such device"),
        ("teapot", "is not a torch device"),
    ],
)
def test_a_device_that_is_not_there_lists_those_that_are(
    tmp_path: Path, device: str, says: str
) -> None:
    done = fresh_nanodoc("run", "train.py:well", "--device", device, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert "available: cpu, sim:0, sim:1" in done.stderr
    assert done.stderr.strip().count("\n") == 0


def test_the_device_of_a_package_that_the_training_imports(
    tmp_path: Path, simulated_environment: pytest.MonkeyPatch
) -> None:
    """torch does not know the type before the user's file is imported."""
    simulated_environment.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    (tmp_path / "train.py").write_text(
        "import simulated_accelerator\nsimulated_accelerator.register()\n" + RECIPES
    )
    report = report_of(
        fresh_nanodoc(
            "run", "train.py:well", "--device", "sim:1", "--output-format", "json", cwd=tmp_path
        )
    )
    assert (report["verdict"], report["run"]["device"]) == (
        "nothing found",
        "sim:1 (Simulated accelerator)",
    )


def test_env_lists_and_tries_every_device(tmp_path: Path) -> None:
    said = report_of(fresh_nanodoc("env", "--output-format", "json", cwd=tmp_path))
    assert [gpu["name"] for gpu in said["gpus"]] == ["Simulated accelerator"] * 2
    checks = {check["name"]: check for check in said["checks"]}
    assert checks["GPU"]["state"] == "OK"
    assert "2 GPUs (sim)" in checks["GPU"]["text"]
    assert "on every device" in checks["half precision"]["text"]
