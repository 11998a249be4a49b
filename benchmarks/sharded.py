"""A step of a GPT whose parameters lie on two ranks (FSDP2 on gloo), bare and watched: two groups
of processes that take turns of a few steps, so that a slow phase of the machine hits both."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.devices import ROOT
from benchmarks.timing import median_ratio
from benchmarks.turns import in_turns

TRAINING = """
import json
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from models import made
from turns import Turns


def main(untimed, count, steps, mine, out):
    turns = Turns(mine)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, x, y = made("gpt", torch.device("cpu"))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    timing = dist.get_rank() == 0  # the other rank waits for this one with each collective
    seconds = []
    for step in range(untimed + count * steps):
        turn, at = divmod(step - untimed, steps)
        if timing and turn >= 0 and at == 0:
            turns.wait(turn)
            began = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        loss.item()
        if timing and turn >= 0 and at == steps - 1:
            seconds.append((time.perf_counter() - began) / steps)
            turns.over(turn)
    if timing:
        with open(out, "w") as file:
            json.dump(seconds, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]), sys.argv[5])
"""
WAYS = {
    "python": ["train.py"],
    "nanodoc run": ["-m", "nanodoc", "run", "--budget", "1", "--quiet", "train.py"],
}
UNTIMED = 60
"""As in `benchmarks.scripts`."""


def sharded(turns: int = 24, steps: int = 4, untimed: int = UNTIMED) -> dict[str, Any]:
    """Milliseconds of a bare step on rank 0, and what nanodoc makes of it: the median of the turns'
    ratios, and their quartiles, which are the noise of the machine."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(ROOT / "benchmarks" / "models.py", folder)
        (folder / "train.py").write_text(TRAINING, encoding="utf-8")
        counts = [str(untimed), str(turns), str(steps)]
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        commands = [[*launcher, *command, *counts] for command in WAYS.values()]
        bare, watched = in_turns(commands, folder, environment)
    ratios = [b / a for a, b in zip(bare, watched, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "bare_ms": statistics.median(bare) * 1e3,
        "ratio": median_ratio(watched, bare),
        "quartiles": [low, high],
    }
