"""Ray Train: a worker's loop under `nanodoc.watch`, two workers of a Ray on this machine. Skipped where the extra is
not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path

import ray
import ray.train
import torch
import torch.nn.functional as F
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model

import nanodoc

HERE = Path(__file__).parent


def train_loop_per_worker(config):
    torch.manual_seed(0)
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draw = torch.Generator().manual_seed(rank)
    batches = [torch.randn(16, 4, generator=draw) for _ in range(10)]
    if config["sick"] and rank == 1:
        batches[5][3, 2] = float("nan")
    with nanodoc.watch(model, optimizer) as watch:
        for x in watch.steps(batches):
            loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    report = watch.report()
    told = {"verdict": report.verdict, "codes": [f.code for f in report.findings], "steps": report.vitals.steps}
    (HERE / f"rank{rank}.json").write_text(json.dumps(told))
    gathered = [None, None]
    torch.distributed.all_gather_object(gathered, report)
    whole = nanodoc.merged(gathered)
    codes = [(f.code, f.rank) for f in whole.findings]
    (HERE / "merged.json").write_text(json.dumps({"verdict": whole.verdict, "codes": codes}))
    ray.train.report({})


ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(
    train_loop_per_worker,
    train_loop_config={"sick": "sick" in sys.argv},
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
    run_config=RunConfig(storage_path=str(HERE / "ray")),
).fit()
"""


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("", [("nothing found", [], 10), ("nothing found", [], 10), ("nothing found", [])]),
        (
            "sick",
            [
                ("critical", ["ND901"], 6),
                ("critical", ["ND101"], 6),
                ("critical", [["ND101", 1], ["ND801", 1]]),
            ],
        ),
    ],
)
def test_each_worker_has_its_report_and_all_have_one(
    tmp_path: Path, word: str, told: list[tuple[str | int, ...]]
) -> None:
    pytest.importorskip("ray.train")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "train.py", *word.split()],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    files = [tmp_path / f"{name}.json" for name in ("rank0", "rank1", "merged")]
    assert all(file.exists() for file in files), done.stderr
    found = [json.loads(file.read_text()) for file in files]
    assert [tuple(one.values()) for one in found] == told
