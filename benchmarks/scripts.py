"""A plain training script of each model, run by `python`, by `nanodoc run`, and by `python` once
more, which take turns: the time of a step as the script itself reads it, and the peak of memory.
What lies between the two bare ones is the noise of the machine."""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.devices import ROOT
from benchmarks.timing import median_ratio, quartiles
from benchmarks.turns import in_turns

TRAINING = """
import json
import resource
import sys
import time

import torch
import torch.nn.functional as F

from models import made
from turns import Turns


def peak_kib():
    # what the kernel tells of a process's resources begins with the peak of the one that started it
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(name, device, untimed, count, length, mine, out):
    turns = Turns(mine)
    model, x, y = made(name, torch.device(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows, began = [], []
    for step in range(untimed + count * length):
        turn, at = divmod(step - untimed, length)
        if step == 0 or (turn >= 0 and at == 0):
            turns.wait(max(turn + 1, 0))
            began = []
        began.append(time.perf_counter())
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        if step + 1 == untimed or (turn >= 0 and at == length - 1):
            rows.append([*began, time.perf_counter()])
            turns.over(max(turn + 1, 0))
    with open(out, "w") as file:
        json.dump({"rows": rows, "peak": peak_kib()}, file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]), sys.argv[7])
"""
UNTIMED = 60
"""Steps at the beginning that are no part of the timed ones, or half of them: those in which a
script's step is recovered, the first close look (step 16), those that are watched in full (48),
and those that are run again before any is watched by its loss alone."""
STEPS = {"500mb-adam": 24, "3000-tensors": 144, "20000-modules": 144}
STEPS |= {"gpt": 120, "gpt-amp": 240, "conv": 120, "lstm": 144}
OTHERWISE = 1260
ALONE = ("sac",)
"""Trainings that are a script and nothing else: `benchmarks/sac.py`."""
_TURN = 40
"""Steps of a turn, or a sixth of those that are timed: of small ones enough for the caches to be
warm again."""
_COLD = 2
"""Of them, that are not timed."""
WAYS = {
    "python": ("train.py",),
    "nanodoc run": ("-m", "nanodoc", "run", "--budget", "1", "--quiet", "train.py"),
    "python again": ("train.py",),
}


def script(
    name: str, repeats: int, steps: int | None = None, device: str = "cpu"
) -> dict[str, Any]:
    """The script of one model, each way, `repeats` times: what nanodoc makes of the median step of
    a turn and of its mean (which holds its rare looks), of the peak of the host's memory, and the
    seconds that the first `UNTIMED` steps take more. "again" is what two bare runs differ by."""
    steps = steps or STEPS.get(name, OTHERWISE)
    untimed = min(UNTIMED, steps // 2)
    length = min(_TURN, max((steps - untimed) // 6, 1))
    turns = (steps - untimed) // length
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    counts = [name, device, str(untimed), str(turns), str(length)]
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "benchmarks" / "models.py", folder)
        if name in ALONE:
            shutil.copy(ROOT / "benchmarks" / f"{name}.py", Path(folder, "train.py"))
        else:
            Path(folder, "train.py").write_text(TRAINING, encoding="utf-8")
        commands = [[*arguments, *counts] for arguments in WAYS.values()]
        for _ in range(repeats):
            runs.append(in_turns(commands, Path(folder), environment))
    python, watched, again = ([_read(run[way]) for run in runs] for way in range(len(WAYS)))
    medians, means = (
        [[turn for run in way for turn in run[key]] for way in (python, watched, again)]
        for key in ("medians", "means")
    )
    added, noise = _differences(medians[:2]), _differences(medians[::2])
    return {
        "bare_ms": statistics.median(medians[0]) * 1e3,
        "bare_quartiles_ms": [seconds * 1e3 for seconds in quartiles(medians[0])],
        "adds_ms": statistics.median(added) * 1e3,
        "adds_quartiles_ms": [seconds * 1e3 for seconds in quartiles(added)],
        "mean_adds_ms": statistics.median(_differences(means[:2])) * 1e3,
        "again_adds_ms": statistics.median(noise) * 1e3,
        "again_quartiles_ms": [seconds * 1e3 for seconds in quartiles(noise)],
        "ratios": {
            "median": median_ratio(medians[1], medians[0]),
            "mean": sum(means[1]) / sum(means[0]),
            "again": median_ratio(medians[2], medians[0]),
            "peak": median_ratio(*([run["peak"] for run in way] for way in (watched, python))),
        },
        "first_steps_add_s": statistics.median(
            _differences([[run["first"] for run in way] for way in (python, watched)])
        ),
    }


def _read(found: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step, by turn."""
    first, *rows = found["rows"]
    turns = [[b - a for a, b in itertools.pairwise(row)] for row in rows]
    turns = [turn[_COLD:] if len(turn) > 2 * _COLD else turn for turn in turns]
    return {
        "medians": [statistics.median(turn) for turn in turns],
        "means": [statistics.fmean(turn) for turn in turns],
        "first": first[-1] - first[0],
        "peak": float(found["peak"]),
    }


def _differences(pair: list[list[float]]) -> list[float]:
    """Of the second from the first."""
    one, other = pair
    return [b - a for a, b in zip(one, other, strict=True)]
