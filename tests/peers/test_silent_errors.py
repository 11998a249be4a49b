"""The 18 silent errors that TrainCheck (Jiang et al., OSDI 2025) lists in the artifact of its paper,
each rebuilt as a small training by the cause that the artifact names, with its healthy twin. The
table in docs/silent-errors.md says the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

PAGE = Path(__file__).resolve().parents[2] / "docs" / "silent-errors.md"

ALONE = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x[:, :4].argmax(1)
"""
NET = "nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))"
LOOP = """
for epoch in range(5):
    for i in range(0, 512, 32):
        loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        {clear}
        loss.backward()
        {step}
"""
ADAM = "optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)\n"


def loop(step: str = "optimizer.step()", clear: str = "optimizer.zero_grad()") -> str:
    return LOOP.format(step=step, clear=clear)


COMPILED = """
number = 0


def step():
    # the graph that is captured without gradients updates copies, from some step on
    global number
    number += 1
    kept = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    if {noop}:
        with torch.no_grad():
            [p.copy_(old) for p, old in zip(model.parameters(), kept)]


"""
FROZEN = """
for name, p in model.named_parameters():
    if "1." not in name:
        p.requires_grad = False
"""
ATTENTION = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, h):
        q, k, v = self.qkv(h).chunk(3, -1)
        p = {p}
        return h + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=p))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block, self.head = nn.Embedding(20, 16), Block(), nn.Linear(16, 4)

    def forward(self, ids):
        return self.head(self.block(self.words(ids)).mean(1))


x = torch.randint(0, 20, (512, 12))
y = x[:, 0] % 4
model = Net()
"""
WORKERS = """
class Noisy(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        return x[i] + 0.1 * np.random.randn(8).astype("float32"), y[i]


def seed(worker):
    np.random.seed({seed})


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
"""
LOADED = """
for epoch in range(2):
    for a, b in DataLoader({loader}, batch_size=16, shuffle=True):
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
COLLATE = """
def processor(samples):
    x = torch.stack([one for one, _ in samples])
    y = torch.stack([one for _, one in samples])
    return {rows}


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
"""
LINEAR = """
class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.1 * torch.randn(32, 32))

    def forward(self, h):
        return {product}


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), Linear(), nn.ReLU(), nn.Linear(32, 4))
"""
CAST = """
for epoch in range(5):
    for i in range(0, 512, 32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x[i : i + 32]), y[i : i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

RANKS = """
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
x = torch.randn(24, 16, 8, generator=torch.Generator().manual_seed(RANK))
y = x[..., :4].argmax(-1)
"""
TOGETHER = """
for number in range(24):
    {call}
    loss = F.cross_entropy(model(x[number]), y[number])
    optimizer.zero_grad()
    loss.backward()
    {reduce}
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""
WRAP = "model = DistributedDataParallel(net)\n"
SGD = "optimizer = torch.optim.SGD(net.parameters(), lr=0.05)\n"
BY_HAND = """
    for p in net.parameters():
        send(p.grad)
        p.grad /= dist.get_world_size()
"""
SEND = """
calls = [0]


def send(tensor):
    dist.all_reduce(tensor)
    calls[0] += 1
    if {lost}:
        tensor.zero_()


model = net
"""


def together(call: str = "pass", reduce: str = "pass") -> str:
    return TOGETHER.format(call=call, reduce=reduce.strip())


TENSOR_PARALLEL = """
class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        h = h.clone()
        dist.all_reduce(h)
        return h

    @staticmethod
    def backward(ctx, grad):
        return grad


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.columns = nn.Parameter(0.3 * torch.randn(16, 8) + 0.01 * RANK)
        self.rows = nn.Parameter(0.3 * torch.randn(4, 16) + 0.01 * RANK)

    def forward(self, h):
        return Sum.apply(F.relu(Copy.apply(self.norm(h)) @ self.columns.t()) @ self.rows.t())


model = net = Halves()
x = torch.randn(24, 16, 8, generator=torch.Generator().manual_seed(0))
y = x[..., :4].argmax(-1)
"""
CLIP = """
    norm = sum(float(p.grad.square().sum()) for p in net.parameters()) ** 0.5
    norm = torch.tensor(norm)
    dist.all_reduce(norm)
    for name, p in net.named_parameters():
        if {clipped}:
            p.grad.mul_(0.1 / norm)
"""


@dataclass(frozen=True)
class Error:
    """`sick` and `healthy` are scripts. `at`: text of the line that is to be named."""

    sick: str
    healthy: str
    code: str
    words: str
    at: str = ""
    ranks: int = 1
    severity: str = "critical"


MOVE = "model.double().float()\n"
FOUND = {
    "baichuan2-86": Error(
        RANKS + WRAP + "if RANK == 1:  # a copy to its device arrives without a row\n"
        "    net[0].weight.data[3].zero_()\n" + SGD + together(),
        RANKS + WRAP + SGD + together(),
        "ND802",
        "started with other weights",
        ranks=2,
    ),
    "pytorch-84803": Error(
        RANKS
        + SEND.format(lost="RANK == 1 and calls[0] % 31 == 0")
        + SGD
        + together("pass", BY_HAND),
        RANKS + SEND.format(lost="False") + SGD + together("pass", BY_HAND),
        "ND802",
        "rank 1",
        ranks=2,
    ),
    "pytorch-96600": Error(
        RANKS
        + WRAP
        + SGD
        + together("pass", "if RANK == 1 and number > 4: net[3].bias.grad.zero_()"),
        RANKS + WRAP + SGD + together(),
        "ND802",
        "rank 1",
        ranks=2,
    ),
    "deepspeed-1801": Error(
        RANKS
        + TENSOR_PARALLEL
        + SGD
        + together("pass", CLIP.format(clipped="RANK == 0 or 'norm' not in name")),
        RANKS + TENSOR_PARALLEL + SGD + together("pass", CLIP.format(clipped="True")),
        "ND802",
        "rank 1 changes gradients between backward and the optimizer's step",
        ranks=2,
    ),
    "lightning-thunder-725": Error(
        ALONE
        + LINEAR.format(product="torch.zeros(len(h), 32).addmm_(h.float(), self.weight)")
        + ADAM
        + CAST,
        ALONE + LINEAR.format(product="h @ self.weight") + ADAM + CAST,
        "ND408",
        "ran in float32",
        at="addmm_(",
        severity="info",
    ),
    "mmpretrain-702": Error(
        RANKS
        + WRAP
        + SGD
        + "for p in net[1].parameters():\n    p.requires_grad_(False)\n"
        + together(),
        RANKS
        + "for p in net[1].parameters():\n    p.requires_grad_(False)\n"
        + WRAP
        + SGD
        + together(),
        "ND803",
        "2 parameters were frozen after the model was wrapped",
        at="p.requires_grad_(False)",
        ranks=2,
    ),
    "pytorch-104336": Error(
        RANKS + WRAP + MOVE + SGD + together(),
        RANKS + f"model = net\n{MOVE}" + WRAP + SGD + together(),
        "ND802",
        "does not reduce the gradients",
        at="model.double().float()",
        ranks=2,
    ),
    "pytorch-115607": Error(
        ALONE + f"model = {NET}\n" + ADAM + COMPILED.format(noop="number > 20") + loop("step()"),
        ALONE + f"model = {NET}\n" + ADAM + COMPILED.format(noop="False") + loop("step()"),
        "ND605",
        "change nothing from step",
        at="optimizer = ",
    ),
    "pytorch-forum-84911": Error(
        ALONE + f"model = {NET}\n" + FROZEN + ADAM + loop(),
        ALONE + f"model = {NET}\n" + ADAM + loop(),
        "ND508",
        "froze",
        at="p.requires_grad = False",
        severity="warning",
    ),
    "stackoverflow-60335387": Error(
        ALONE + f"model = {NET}\n" + ADAM + loop(clear="pass"),
        ALONE + f"model = {NET}\n" + ADAM + loop(),
        "ND608",
        "never cleared",
        at="optimizer.step()",
    ),
    "stackoverflow-67180955": Error(
        ALONE
        + WORKERS.format(seed="0")
        + ADAM
        + LOADED.format(loader="Noisy(), num_workers=2, worker_init_fn=seed"),
        ALONE
        + WORKERS.format(seed="torch.initial_seed() % 2**32")
        + ADAM
        + LOADED.format(loader="Noisy(), num_workers=2, worker_init_fn=seed"),
        "ND127",
        "same",
        severity="warning",
    ),
    "transformers-33844": Error(
        ALONE + ATTENTION.format(p="0.1") + ADAM + loop(),
        ALONE + ATTENTION.format(p="0.1 if self.training else 0.0") + ADAM + loop(),
        "ND644",
        "drops values in eval mode too",
        at="scaled_dot_product_attention(",
        severity="warning",
    ),
    "transformers-34204": Error(
        ALONE
        + COLLATE.format(rows="x[:1], y[:1]")
        + ADAM
        + LOADED.format(loader="TensorDataset(x, y), collate_fn=processor"),
        ALONE
        + COLLATE.format(rows="x, y")
        + ADAM
        + LOADED.format(loader="TensorDataset(x, y), collate_fn=processor"),
        "ND681",
        "the batch holds 1 of the 16 samples",
        at="return x[:1], y[:1]",
        severity="warning",
    ),
    "x-jxmnop-ddp-out-of-sync": Error(
        RANKS
        + "model = wrapped = DistributedDataParallel(net)\n"
        + SGD
        + together("model = wrapped if number % 2 else net"),
        RANKS + WRAP + SGD + together(),
        "ND802",
        "does not reduce the gradients",
        ranks=2,
    ),
}
ELSEWHERE = {
    "deepspeed-5794": "supervise/test_ranks.py::test_a_rank_whose_shapes_are_its_own",
}
NOT_FOUND = ("pytorch-51800", "transformers-17877", "transformers-23723")


def told(folder: Path, script: str, ranks: int) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(script)
    shown = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *shown, "train.py", cwd=folder, ranks=ranks)
    assert (folder / "report.json").exists(), done.stderr
    found: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())["findings"]
    return found


@pytest.mark.parametrize("name", FOUND)
def test_the_error_is_named(tmp_path: Path, name: str) -> None:
    error = FOUND[name]
    found = [one for one in told(tmp_path, error.sick, error.ranks) if one["code"] == error.code]
    assert [one["severity"] for one in found] == [error.severity]
    assert error.words in found[0]["title"]
    if error.at:
        line = line_of(tmp_path / "train.py", error.at)
        assert found[0]["culprit"]["location"]["line"] == line


@pytest.mark.parametrize("name", FOUND)
def test_the_twin_is_left_alone(tmp_path: Path, name: str) -> None:
    error = FOUND[name]
    assert [one["code"] for one in told(tmp_path, error.healthy, error.ranks)] == []


def test_the_page_says_the_same() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert set(rows[1:]) == {*FOUND, *ELSEWHERE, *NOT_FOUND}
    for name, error in FOUND.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} ")]
        assert error.code in row
