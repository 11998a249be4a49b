"""What a whole process takes, from start to exit."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.devices import ROOT

TINY = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = [(torch.randn(8, 8), torch.randn(8, 1)) for _ in range(4)]
    return {"model": model, "criterion": torch.nn.MSELoss(), "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 20}

if __name__ == "__main__":
    recipe = build()
    for step in range(20):
        x, y = recipe["data"][step % 4]
        recipe["optimizer"].zero_grad()
        recipe["criterion"](recipe["model"](x), y).backward()
        recipe["optimizer"].step()
"""

_RUN = ("-m", "nanodoc", "run", "train.py:build", "--quiet", "--device", "cpu")
WAYS = {
    "python": ("train.py",),
    "nanodoc run": _RUN,
    "nanodoc run --in-process": (*_RUN, "--in-process"),
}


def start_up(repeats: int = 5, ways: Mapping[str, tuple[str, ...]] = WAYS) -> dict[str, float]:
    """`nanodoc run` of a tiny recipe over `python train.py` of the same steps: whole processes,
    from start to exit, in turn."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(TINY, encoding="utf-8")
        for _ in range(repeats):
            for way, arguments in ways.items():
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, *arguments],
                    cwd=folder,
                    env=environment,
                    capture_output=True,
                    check=True,
                )
                seconds[way].append(time.perf_counter() - began)
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    python = medians.pop("python")
    return {"python_seconds": python, **{way: one / python for way, one in medians.items()}}
