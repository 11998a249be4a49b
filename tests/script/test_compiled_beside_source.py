"""Compiled parts of a training compute what their source says, but for rounding: what does not is
a finding at its line, and nothing else is one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
HOW = sys.argv[1].split("+")
BACKEND = "inductor" if "inductor" in HOW else "aot_eager"
options = {"backend": BACKEND}
if "reduce-overhead" in HOW:
    options["mode"] = "reduce-overhead"
if "fullgraph" in HOW:
    options["fullgraph"] = True
if "dynamic" in HOW:
    options["dynamic"] = True
if "constant" in HOW:
    @torch._dynamo.assume_constant_result
    def temperature():
        return 1.0 + steps
else:
    def temperature():
        return 1.0
@torch.library.custom_op("shop::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@scale.register_fake
def _(x):
    return torch.empty_like(x)
scale.register_autograd(lambda ctx, g: g * 2)
@torch.library.custom_op("shop::tally", mutates_args=())
def tally(x: torch.Tensor) -> torch.Tensor:
    if "mutating" in HOW:
        x.mul_(2)
    return x * 1
@tally.register_fake
def _(x):
    return torch.empty_like(x)
tally.register_autograd(lambda ctx, g: g)
if "decomposition" in HOW:
    from torch._inductor.decomposition import decompositions
    decompositions[torch.ops.shop.scale.default] = lambda x: x * 3
steps = 0
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(0.2 if "dropout" in HOW else 0.0)
        self.batch_norm = nn.BatchNorm1d(d) if "batch norm" in HOW else nn.Identity()
        self.register_buffer("average", torch.zeros(d))
        self.calls = 0
    def forward(self, x):
        h = self.batch_norm(self.norm(x))
        if "branch" in HOW and torch.compiler.is_compiling():
            h = h * 0.5  # planted branch
        if "nan" in HOW and torch.compiler.is_compiling():
            h = h + 0 * (60 - h.abs().max()).log()  # planted NaN
        if "break" in HOW:
            torch._dynamo.graph_break()
        if "buffer" in HOW:
            with torch.no_grad():
                self.average.lerp_(h.mean(0), 0.1)
            h = h - self.average
        if "counter" in HOW:
            self.calls += 1
            h = h * min(1.0, self.calls / 100)
        if "op" in HOW:
            h = scale(h)  # planted op
        h = self.drop(F.gelu(self.up(h)))
        if "mutating" in HOW:
            h = h + tally(h)  # planted write
        h = h / temperature()
        return x + self.down(h)
class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.first, self.head = nn.Linear(6, d), nn.Linear(d, 3)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
    def forward(self, x):  # of the net
        x = torch.tanh(self.first(x))
        for b in self.blocks:
            x = b(x)
        return self.head(x)
def loss_of(out, y):
    if "loss branch" in HOW and torch.compiler.is_compiling():
        return F.cross_entropy(out, y, label_smoothing=0.3)  # planted loss
    return F.cross_entropy(out, y)
model = Net()
if "half" in HOW:
    model = model.bfloat16()
if "block" in HOW:
    for i, b in enumerate(model.blocks):
        model.blocks[i] = torch.compile(b, **options)
elif "loss" in HOW or "loss branch" in HOW:
    loss_of = torch.compile(loss_of, **options)
elif "in place" in HOW:
    model.compile(**options)
else:
    model = torch.compile(model, **options)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
advance = torch.compile(optimizer.step, backend="aot_eager") if "optimizer" in HOW else optimizer.step
X, Y = torch.randn(320, 6), torch.randint(0, 3, (320,))
if "nan" in HOW:
    model.blocks[1].norm.bias.data[0] = 59.9
for i in range(8):
    steps = i
    part = slice(8 * i, 8 * i + 8 + (i % 2 if "dynamic" in HOW else 0))
    x, y = X[part], Y[part]
    if "half" in HOW:
        x = x.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled="autocast" in HOW):
        loss = loss_of(model(x), y)
    loss.backward()
    advance()
    optimizer.zero_grad()
print(loss.item(), sum(p.double().sum().item() for p in model.parameters()))
"""
HEALTHY = (
    *("plain", "fullgraph", "dynamic", "in place", "block", "loss", "dropout", "batch norm"),
    *("buffer", "break", "counter", "op", "half", "autocast", "optimizer"),
    *("inductor", "inductor+dropout", "inductor+batch norm+buffer", "inductor+autocast"),
    *("inductor+reduce-overhead+break", "inductor+half+block"),
)
SICK = {
    "branch": ("h = h * 0.5  # planted branch", "model"),
    "branch+block+fullgraph": ("h = h * 0.5  # planted branch", "blocks.0"),
    "branch+in place+dynamic": ("h = h * 0.5  # planted branch", "model"),
    "branch+inductor+autocast": ("h = h * 0.5  # planted branch", "model"),
    "nan": ("# planted NaN", "model"),
    "mutating+inductor": ("# planted write", "model"),
    "loss branch": ("# planted loss", "loss_of"),
    "op+decomposition+inductor": ("# planted op", "model"),
    "constant": ("def forward(self, x):  # of the net", "model"),
}


def _slowly(cases: Iterable[str]) -> list[Any]:
    """Compiling to machine code takes 20 s."""
    return [
        pytest.param(how, marks=pytest.mark.slow) if "inductor" in how else how for how in cases
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def report(path: Path, how: str) -> tuple[dict[str, Any], Any]:
    # in a process of its own: what is compiled stays in the process
    ran = nanodoc("run", "--output", "json=r.json", path.name, how, cwd=path.parent)
    return json.loads((path.parent / "r.json").read_text()), ran


def why(told: dict[str, Any]) -> list[str]:
    """What was said of compiled parts that were not asked."""
    return [
        f"{one['what']}: {one['why']}" for one in told["not_checked"] if "compiled" in one["what"]
    ]


@pytest.mark.parametrize("how", _slowly(HEALTHY))
def test_what_rounds_draws_or_counts_is_no_finding(how: str, path: Path) -> None:
    told, ran = report(path, how)
    assert ran.stdout == python(path.name, how, cwd=path.parent).stdout
    assert [f["code"] for f in told["findings"] if f["code"] == "ND674"] == []
    unasked = why(told)
    assert any("random" in one for one in unasked) is ("dropout" in how)
    if not {"dropout", "counter"} & set(how.split("+")):
        assert unasked == []


@pytest.mark.parametrize("how", _slowly(SICK))
def test_what_computes_otherwise_is_found_at_its_line(how: str, path: Path) -> None:
    told, ran = report(path, how)
    if how != "nan":  # a run that is sick is ended
        assert ran.stdout == python(path.name, how, cwd=path.parent).stdout
    line, part = SICK[how]
    found = next(f for f in told["findings"] if f["code"] == "ND674")
    assert found["culprit"]["location"]["line"] == line_of(path, line)
    assert part in found["title"] or part == "model"
    assert "ND901" not in {f["code"] for f in told["findings"]}
    assert "_orig_mod" not in json.dumps(told["findings"])
