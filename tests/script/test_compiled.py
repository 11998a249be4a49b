"""Compiled trainings: the same findings at the same lines as the ones that are not compiled, and
the numbers that plain Python gives. The backend compiles nothing to machine code, which would take
long; what it is given is what a compiler would be given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import sys
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
HOW, BAD = sys.argv[1], len(sys.argv) > 2
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.seen = None
    def forward(self, x, spoil):
        h = self.down(F.gelu(self.up(self.norm(x))))
        self.seen = next(iter([h.detach().mean()]))
        if spoil:
            h = h + (h - h.detach()).abs().sqrt()  # planted
        return x + h
class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.first, self.head = nn.Linear(6, d), nn.Linear(d, 3)
        self.blocks = nn.ModuleList([Block(d), Block(d)])
    def forward(self, x, spoil):
        x = torch.tanh(self.first(x))
        for b in self.blocks:
            if HOW == "checkpointing":
                x = checkpoint(b, x, spoil, use_reentrant=False)
            else:
                x = b(x, spoil)
        return self.head(x)
def compiled(what, **options):
    return torch.compile(what, backend="aot_eager", **options)
def loss_of(out, y):
    return F.cross_entropy(out, y)
def whole(x, y, spoil):
    return loss_of(model(x, spoil), y)
model = Net()
if HOW in ("model", "accumulation", "autocast", "checkpointing"):
    model = compiled(model)
elif HOW in ("fullgraph", "dynamic"):
    model = compiled(model, **{HOW: True})
elif HOW == "in place":
    model.compile(backend="aot_eager")
elif HOW == "block":
    for i, b in enumerate(model.blocks):
        model.blocks[i] = compiled(b)
elif HOW == "loss":
    loss_of = compiled(loss_of)
elif HOW == "function":
    whole = compiled(whole)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
def advance():
    optimizer.step()
if HOW == "optimizer":
    advance = compiled(advance)
X, Y = torch.randn(320, 6), torch.randint(0, 3, (320,))
for i in range(16):
    part = slice(8 * i, 8 * i + 8 + (i % 2 if HOW == "dynamic" else 0))
    x, y, spoil = X[part], Y[part], BAD and i >= 12
    with torch.autocast("cpu", torch.bfloat16, enabled=HOW == "autocast"):
        loss = whole(x, y, spoil)
    loss.backward()
    if HOW == "accumulation" and i % 2 == 0:
        continue
    advance()
    optimizer.zero_grad()
print(loss.item(), sum(p.double().sum().item() for p in model.parameters()))
"""
HOW = (
    *("model", "fullgraph", "dynamic", "in place", "block", "loss", "function", "autocast"),
    *("accumulation", "checkpointing", "optimizer"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def report(path: Path, *arguments: str) -> tuple[dict[str, Any], Any]:
    # in a process of its own: what is compiled stays in the process
    ran = nanodoc("run", "--output", "json=r.json", path.name, *arguments, cwd=path.parent)
    return json.loads((path.parent / "r.json").read_text()), ran


@pytest.mark.parametrize("how", HOW)
def test_a_compiled_training_is_left_as_it_is(how: str, path: Path) -> None:
    told, ran = report(path, how)
    assert ran.stdout == python(path.name, how, cwd=path.parent).stdout
    assert "Dynamo does not know" not in ran.stderr
    assert told["run"]["step_found"].endswith("bitwise the same")
    assert [f["code"] for f in told["findings"] if f["severity"] != "info"] == []


@pytest.mark.parametrize("how", HOW)
def test_what_is_planted_is_found_at_its_line(how: str, path: Path) -> None:
    found = report(path, how, "bad")[0]["findings"][0]
    assert found["code"] == "ND301"
    assert found["culprit"]["location"]["line"] == line_of(path, "# planted")
    assert found["culprit"]["module"] == "blocks.1"
