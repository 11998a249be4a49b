"""A step that can't be run again: nothing of it is done twice, and with --trace-steps it is traced
while the script runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import sqlite3, sys
import torch
from torch import nn

torch.manual_seed(0)
rows = sqlite3.connect("log.db")
rows.execute("create table log (step int, loss real)")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(8, 16), nn.Linear(16, 1), 0.5

    def forward(self, x):
        h = self.first(x)
        total = h.relu().sum(1, keepdim=True)
        return self.last(h / (total - total.detach() * self.scale))

class Rooted(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.scale = nn.Linear(8, 1), 0.5

    def forward(self, x):
        h = self.last(x)
        hole = torch.ones_like(h)
        hole[3, 0] = 2 * (1 - self.scale)
        return (h.square() * hole).sqrt()

net = Rooted() if "root" in sys.argv else Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
draw = torch.Generator().manual_seed(1)
for step in range(20):
    x = torch.randn(16, 8, generator=draw)
    if step == 13 and "bad" in sys.argv:
        net.scale = 1.0
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    rows.execute("insert into log values (?, ?)", (step, loss.item()))
    rows.commit()
    if step == 15 and "raise" in sys.argv:
        x @ x
    optimizer.step()
    print(step, loss.item())
print(rows.execute("select count(*) from log").fetchone(), sum(p.sum() for p in net.parameters()).item())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, words: tuple[str, ...], *options: str) -> tuple[str, dict[str, Any]]:
    (script.parent / "log.db").unlink(missing_ok=True)
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, *options, script.name, "--", *words, cwd=script.parent)
    assert report.exists(), done.stderr
    return done.stdout, json.loads(report.read_text())


def test_a_traced_step_is_the_scripts_own(script: Path) -> None:
    bare = python(script.name, cwd=script.parent).stdout
    out, report = run(script, (), "--trace-steps", "3,7")
    assert out == bare
    assert report["findings"] == []
    assert report["run"]["step_found"] == f"step train.py:{line_of(script, 'for step')}, not re-run"
    assert (script.parent / "nanodoc-out/trace-step7.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [(("bad",), "ND202", "h / (total"), (("bad", "root"), "ND301", "* hole).sqrt()")],
    ids=["forward", "backward"],
)
def test_the_op_of_a_sick_step_is_named(
    script: Path, words: tuple[str, ...], code: str, line: str
) -> None:
    _, report = run(script, words)
    told = report["findings"][0]
    assert (told["code"], told["step"]) == ("ND901", 13)
    assert "--trace-steps 13" in told["explanation"]
    assert "the replay" not in told["explanation"]  # there was none
    _, report = run(script, words, "--trace-steps", "13")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == (code, 13)
    assert found["culprit"]["location"]["line"] == line_of(script, line)
    assert report["run"]["step_found"].endswith("not re-run, step 13 traced as it ran")
    assert report["run"]["reproduced"] == "as_it_ran"
    assert not [e for e in found["experiments"] if "fails" in e["outcome"]]


def test_a_step_that_raises_is_not_run_again(script: Path) -> None:
    import sqlite3

    _, report = run(script, ("raise",))
    assert report["findings"][0]["culprit"]["location"]["line"] == line_of(script, "x @ x")
    with sqlite3.connect(script.parent / "log.db") as rows:
        assert rows.execute("select count(*) from log").fetchone() == (16,)
    rows.close()
