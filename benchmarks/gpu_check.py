"""For whoever has a GPU at hand, of any maker: the tests on it and the bench, in one go (under 8
minutes).

Runs what fits the device that torch sees (CUDA, ROCm, XPU, MPS, …) and prints one block to paste
into docs/accelerators.md. Uses the active Python as it is (torch for the device, pytest, typer,
pyyaml, rich; pytest-xdist, where it is there); installs nothing. Files go to $OUT, or the working
folder. Exit codes: 0 all passed, 1 something failed, 2 no device.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.devices import ROOT
from benchmarks.internals import accelerator, cuda

SECONDS = 240
"""For the tests, and for the bench."""
_OF_THE_DEVICE = (
    *("--repeats", "5", "--seconds", "0.2", "--models", "gpt,conv,lstm,gpt-amp"),
    *("--no-memory", "--no-scripts", "--no-start-up", "--long-steps", "0"),
)
"""What the bench measures of it, in the time there is: not the host's processes."""


def main() -> int:
    device = accelerator.current()
    if device is None:
        build = cuda.build() or "the CPU alone"
        print(f"torch {torch.__version__} ({build}) sees no accelerator", file=sys.stderr)
        return 2
    out = Path(os.environ.get("OUT", ".")).resolve()
    results, bench = out / "gpu-tests.xml", out / "bench-gpu.json"
    tests = ("-m", "pytest", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider")
    # most of the time goes into starting processes
    beside: tuple[str, ...] = ("-n", "4") if importlib.util.find_spec("xdist") is not None else ()
    beside += ("-p", "no:benchmark")  # of pytest-benchmark, which warns of xdist
    status = _run(*tests, *beside, f"--junitxml={results}")
    options = ("--device", device.type, *_OF_THE_DEVICE)
    status |= _run("scripts/bench", *options, "--output", str(bench))
    _print_block(device, results, bench, " ".join(options))
    return 1 if status else 0


def _run(*arguments: str) -> int:
    """A Python command in the project's folder; 1 where it takes too long."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            timeout=SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"ended after {SECONDS} s: {' '.join(arguments[:4])}", file=sys.stderr)
        return 1


def _print_block(device: torch.device, results: Path, bench: Path, options: str) -> None:
    """What is to be pasted into the document."""
    maker = (cuda.build() or "CUDA") if device.type == "cuda" else device.type.upper()
    memory = accelerator.memory_info(device)
    size = f"{memory[1] / 2**30:.1f} GiB" if memory is not None else "not told by the device"
    name = accelerator.device_name(device) or device
    python = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    print("\n--- for docs/accelerators.md ---")
    print(f"### {name} ({maker}), {date.today().isoformat()}\n")
    print(f"- torch {torch.__version__}, {python}")
    print(f"- memory: {size}; float64: {'yes' if accelerator.has_float64(device) else 'no'}")
    print(f"- `pytest -m gpu tests/gpu`: {counts(results)}")
    print(f"- `scripts/bench {options}`: {ratios(bench, device.type)}")
    print("--- end ---")


def counts(path: Path) -> str:
    """Passed, failed and skipped, as pytest wrote them."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return "not finished"
    keys = ("tests", "failures", "errors", "skipped")
    found = {key: sum(int(suite.get(key, 0)) for suite in suites) for key in keys}
    bad = found["failures"] + found["errors"]
    passed = found["tests"] - bad - found["skipped"]
    return f"{passed} passed, {bad} failed, {found['skipped']} skipped"


def ratios(path: Path, kind: str) -> str:
    """The monitored and the traced step over the bare one, by model."""
    try:
        models = json.loads(path.read_text(encoding="utf-8"))["devices"][kind]["models"]
    except (OSError, ValueError, KeyError):
        return "not finished"
    return "; ".join(
        f"{name} {row['bare_ms']:.1f} ms, monitored {row['ratios']['monitored']:.3f}, "
        f"traced {row['ratios']['traced']:.2f}, frames {row['ratios']['frames']:.2f}"
        for name, row in models.items()
    )
