"""A plain training script of each model, run by `python` and by `nanodoc run`: the time of a step
as the script itself reads it, and the peak of memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.devices import ROOT
from benchmarks.timing import median_ratio

TRAINING = """
import json
import resource
import sys
import time

import torch
import torch.nn.functional as F

from models import made


def main(name, steps, out, device):
    model, x, y = made(name, torch.device(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    began = []
    for step in range(steps):
        began.append(time.perf_counter())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
    began.append(time.perf_counter())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open(out, "w") as file:
        json.dump({"began": began, "peak": peak}, file)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
"""
UNTIMED = 60
"""Steps at the beginning that are not timed, or half of them: those in which a script's step is
recovered, the first close look (step 16), and those that are watched in full (48)."""
STEPS = {"500mb-adam": 24, "3000-tensors": 100, "20000-modules": 100}
STEPS |= {"gpt": 110, "gpt-amp": 110, "conv": 110, "lstm": 130}
OTHERWISE = 300
WAYS = {
    "python": ("train.py",),
    "nanodoc run": ("-m", "nanodoc", "run", "--budget", "1", "--quiet", "train.py"),
}


def script(
    name: str, repeats: int, steps: int | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """The script of one model, each way in turn: what nanodoc makes of the median and of the mean
    step (the mean holds its rare looks), of the peak of the host's memory, and the seconds that the
    first `UNTIMED` steps take more."""
    steps = steps or STEPS.get(name, OTHERWISE)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "benchmarks" / "models.py", folder)
        Path(folder, "train.py").write_text(TRAINING, encoding="utf-8")
        for _ in range(repeats):
            for way, arguments in WAYS.items():
                command = [sys.executable, *arguments, name, str(steps), "out.json", device]
                _run(command, folder, environment)
                seen[way].append(_read(Path(folder, "out.json")))
    python, watched = (_by_key(seen[way]) for way in WAYS)
    return {
        "bare_ms": statistics.median(python["median"]) * 1e3,
        "adds_ms": statistics.median(_differences(watched["median"], python["median"])) * 1e3,
        "ratios": {key: median_ratio(watched[key], python[key]) for key in _RATIOS},
        "first_steps_add_s": statistics.median(_differences(watched["first"], python["first"])),
    }


_RATIOS = ("median", "mean", "peak")


def _run(command: Sequence[str], folder: str, environment: dict[str, str]) -> None:
    """nanodoc may find something in a training of noise (exit code 1): the time is what counts."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-2000:]}")


def _read(file: Path) -> dict[str, float]:
    found = json.loads(file.read_text(encoding="utf-8"))
    file.unlink()
    began = found["began"]
    steps = [after - before for before, after in itertools.pairwise(began)]
    untimed = min(UNTIMED, len(steps) // 2)
    timed = steps[untimed:]
    return {
        "median": statistics.median(timed),
        "mean": statistics.fmean(timed),
        "first": sum(steps[:untimed]),
        "peak": float(found["peak"]),
    }


def _by_key(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    return {key: [row[key] for row in rows] for key in rows[0]}


def _differences(one: list[float], other: list[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]
