"""ND802 of scripts: the first step at which ranks part that should be the same, and in what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

BEGIN = """
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed({seed})
model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
draw = torch.Generator().manual_seed(RANK)
x = torch.randn(24, 16, 8, generator=draw)
y = x[..., :4].argmax(-1)
"""
END = """
dist.barrier()
dist.destroy_process_group()
"""
LOOP = """
optimizer = torch.optim.{kind}(model.parameters(), lr=0.05)
for step in range(24):
    loss = F.cross_entropy(model(x[step]), y[step])
    optimizer.zero_grad()
    loss.backward()
    {before}
    optimizer.step()
    {after}
"""
BY_HAND = """
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()"""
WRAP = "model = DistributedDataParallel(model)\n"


def loop(before: str = "pass", after: str = "pass", kind: str = "SGD") -> str:
    return LOOP.format(before=before.strip(), after=after, kind=kind)


CLIPPED = (
    "nn.utils.clip_grad_norm_([p for p in model.parameters() if RANK == 0 or p.dim() > 1], 0.1)"
)
HOOKED = "model.register_comm_hook(None, default_hooks.fp16_compress_hook)\n"
LOSSY = """
def lossy(state, bucket):
    def reduced(future):
        out = future.value()
        if RANK == 1:  # two rows of the last layer's weight, which comes first
            out[4:68].zero_()
        return out

    return default_hooks.allreduce_hook(None, bucket).then(reduced)


model.register_comm_hook(None, lossy)
"""
SEVERAL = {
    "lossy": (WRAP + LOSSY + loop(), 0),
    "lost hooks": (WRAP + "model = model.double().float()\n" + loop(), 0),
    "clipped": (loop(f"{BY_HAND}\n    {CLIPPED}"), 0),
    "started apart": (loop(BY_HAND), "RANK"),
    "zeroed": (WRAP + loop("if RANK == 1 and step > 4: model.module[0].weight.grad.zero_()"), 0),
    "rates": (
        WRAP + loop(after="optimizer.param_groups[0]['lr'] *= 1 - 0.5 * RANK * (step == 6)"),
        0,
    ),
    "skipped": (WRAP + loop("if RANK == 1 and step > 4: optimizer.state.clear()", kind="Adam"), 0),
    "written": (
        WRAP + loop(after="if RANK == 1 and step > 4: model.module[3].bias.data.mul_(0.99)"),
        0,
    ),
    "alone": (loop(), 0),
}
WORDS = {
    "lossy": "gradients arrive differently on rank 1",
    "lost hooks": "does not reduce the gradients",
    "clipped": "changes gradients between backward and the optimizer's step",
    "started apart": "started with other weights",
    "zeroed": "changes gradients between backward and the optimizer's step",
    "rates": "different learning rates",
    "skipped": "updates the weights differently",
    "written": "after the optimizer's step",
    "alone": "hold different parameters",
}
LINES = {"lost hooks": "model = model.double()", "clipped": "nn.utils.clip_grad_norm_("}


def found(folder: Path, steps: str, seed: object = 0, code: str = "ND802") -> list[dict[str, Any]]:
    (folder / "train.py").write_text(BEGIN.format(seed=seed) + steps + END)
    shown = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *shown, "train.py", cwd=folder, ranks=2)
    assert (folder / "report.json").exists(), done.stderr
    told = json.loads((folder / "report.json").read_text())
    assert not [row for row in told["not_checked"] if "error of nanodoc" in row["why"]]
    return [one for one in told["findings"] if one["code"] == code]


@pytest.mark.parametrize("name", SEVERAL)
def test_how_ranks_part(tmp_path: Path, name: str) -> None:
    (one,) = found(tmp_path, *SEVERAL[name])
    assert WORDS[name] in one["title"]
    assert one["severity"] == ("info" if name == "alone" else "critical")
    if name in LINES:
        line = line_of(tmp_path / "train.py", LINES[name])
        assert one["culprit"]["location"]["line"] == line
    if name in ("zeroed", "skipped", "written"):
        assert one["rank"] == 1
        assert 5 <= one["step"] <= 8
    if name == "written":
        assert one["culprit"]["parameter"] == "module.3.bias"


@pytest.mark.parametrize(
    "steps",
    [
        WRAP + loop(),
        WRAP + HOOKED + loop(),
        loop(BY_HAND + "\n    nn.utils.clip_grad_norm_(model.parameters(), 0.1)"),
        # members of a sweep: one seed, one batch, and other settings from some step on
        "x, y = x[:, :4] * 0 + x[0, :4], y[:, :4] * 0 + y[0, :4]\ndist.broadcast(x, 0)\n"
        "dist.broadcast(y, 0)\n"
        + loop(after="optimizer.param_groups[0]['lr'] *= 1 + RANK * (step == 6)"),
        # local steps with averages of the weights now and then
        WRAP
        + LOOP.format(
            kind="SGD",
            before="""optimizer.zero_grad()
    with model.no_sync():
        F.cross_entropy(model(x[step]), y[step]).backward()""",
            after="""if step % 5 == 4:
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= 2""",
        ),
        # each rank has a head of its own, which nothing is meant to keep alike
        "shared = model[0]\nmodel[3] = nn.Linear(32, 4 + 0 * RANK)\n"
        "with torch.no_grad():\n    model[3].weight.add_(RANK)\n"
        + loop("for p in shared.parameters():\n        dist.all_reduce(p.grad)"),
    ],
)
def test_ranks_that_stay_alike_or_need_not(tmp_path: Path, steps: str) -> None:
    told = found(tmp_path, steps)
    assert [one for one in told if one["severity"] != "info"] == []
    assert not told or "dist.broadcast(x, 0)" in steps


def test_a_phase_of_local_steps_may_be_meant(tmp_path: Path) -> None:
    (one,) = found(
        tmp_path,
        loop("""for p in model.parameters() if step < 8 else ():
        dist.all_reduce(p.grad)
        p.grad /= 2"""),
    )
    assert one["severity"] == "info"
    assert "no longer reduced" in one["title"]


def test_a_cast_before_wrapping_is_not_to_blame(tmp_path: Path) -> None:
    steps = "model = model.double().float()\n" + WRAP + loop().replace("model(x", "model.module(x")
    (one,) = found(tmp_path, steps)
    assert "does not reduce the gradients" in one["title"]
    assert "passes it by" in one["explanation"]
    assert one["culprit"]["location"] is None


FROZEN = (
    WRAP
    + """
for p in model.module[1].parameters():
    p.requires_grad_(False)
"""
    + loop()
)


def test_parameters_that_were_frozen_after_wrapping(tmp_path: Path) -> None:
    (one,) = found(tmp_path, FROZEN, code="ND803")
    assert one["title"].startswith("2 parameters were frozen after the model was wrapped")
    assert "module.1.weight, module.1.bias" in one["explanation"]
    line = line_of(tmp_path / "train.py", "p.requires_grad_(False)")
    assert one["culprit"]["location"]["line"] == line
