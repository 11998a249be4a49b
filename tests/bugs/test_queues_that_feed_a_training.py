"""A thread that fills a queue with batches made every step one that "can't be run again", and the
report named no line. What a queue gave is given again, what is put into one is put once, and what
speaks to another process is never run twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

HEAD = """
import queue, socket, sys, threading
import torch
from torch import nn

torch.manual_seed(0)
batches, done = queue.Queue(4), queue.Queue()
here, there = socket.socketpair()

def feed():
    draw = torch.Generator().manual_seed(1)
    for number in range(12):
        x = torch.randn(16, 8, generator=draw)
        if number == 7 and "bad" in sys.argv:
            x[3] = 0
        batches.put((x, x.sum(1, keepdim=True)))
    batches.put(None)

def train(item):
    x, y = item
    x = x / x.norm(dim=1, keepdim=True)
    loss = (net(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()

net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
threading.Thread(target=feed, daemon=True).start()
"""
LOOPS = {
    "in the loop's own line": """
while (item := batches.get()) is not None:
    print(train(item))
""",
    "in its body": """
while True:
    item = batches.get()
    if item is None:
        break
    done.put(item)
    print(train(item), done.qsize())
    batches.task_done()
""",
    "without waiting": """
while True:
    try:
        item = batches.get_nowait()
    except queue.Empty:
        continue
    if item is None:
        break
    print(train(item))
""",
    "by a function": """
def drawn():
    while (item := batches.get()) is not None:
        yield item
for item in drawn():
    print(train(item))
""",
}
SENT = """
while (item := batches.get()) is not None:
    here.sendall(b"x")
    print(train(item))
    print(there.recv(99))
"""


def run(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    report = folder / "report.json"
    options = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *options, "train.py", "--", *arguments, cwd=folder)
    assert report.exists(), done.stderr
    return done.stdout, json.loads(report.read_text())


@pytest.mark.parametrize("loop", LOOPS)
def test_the_step_is_run_again_and_the_line_is_found(loop: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + LOOPS[loop])
    out, report = run(tmp_path)
    assert out == python("train.py", cwd=tmp_path).stdout
    assert report["run"]["step_found"].endswith("re-run only if it fails")
    assert report["findings"] == []
    _, report = run(tmp_path, "bad")
    first = report["findings"][0]
    assert (first["code"], first["step"]) == ("ND202", 7)
    assert first["culprit"]["location"]["line"] == line_of(script, "x / x.norm(")


def test_what_speaks_to_another_process_is_not_run_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + SENT)
    out, report = run(tmp_path)
    assert out == python("train.py", cwd=tmp_path).stdout
    assert out.count("b'x'") == 12
    assert "bitwise" not in report["run"]["step_found"]
