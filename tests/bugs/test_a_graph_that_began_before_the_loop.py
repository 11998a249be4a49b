"""A tensor that is computed before a loop, with its graph, and that every step of the loop
differentiates: the first step could not be run again, since its own run had freed that graph, and
the error of the second step was told without the tensor and without its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

CLOSURE = """
import torch

def main():
    torch.manual_seed(0)
    encoder, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=1e-3)
    x, y = torch.randn(32, 8), torch.randn(32, 1)
    features = torch.tanh(encoder(x))

    def objective(index):
        return (head(features[index]) - y[index]).square().mean()

    for _ in range(6):
        loss = objective(torch.randperm(32)[:8])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())

main()
"""
ATTRIBUTE = """
import torch

class Centres:
    def __init__(self, net):
        self.net = net
        self.table = None

    def refresh(self, x):
        self.table = self.net(x).reshape(4, 5, -1).mean(1)

    def distances(self, x):
        return torch.cdist(self.net(x), self.table)

def main():
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 4)
    centres = Centres(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        centres.refresh(torch.randn(20, 8))
        for _ in range(4):
            y = torch.randint(0, 4, (12,))
            loss = torch.nn.functional.cross_entropy(-centres.distances(torch.randn(12, 8)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())

main()
"""
LIST = """
import torch

class Critic:
    def __init__(self):
        self.net = torch.nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def fit(self, states):
        targets = []
        for state in states:
            targets.append(1 + 0.9 * torch.tanh(self.net(state)))
        for _ in range(3):
            errors = [(self.net(s) - t).square().mean() for s, t in zip(states, targets)]
            self.optimizer.zero_grad()
            sum(errors).backward()
            self.optimizer.step()
        print(float(errors[-1]))

torch.manual_seed(0)
critic = Critic()
for _ in range(3):
    critic.fit([torch.randn(5, 6) for _ in range(3)])
"""
TABLE = """
import torch

torch.manual_seed(0)
embed, score = torch.nn.Linear(10, 8), torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam([*embed.parameters(), *score.parameters()], lr=0.01)
nodes = {i: torch.randn(10) for i in range(6)}
for _ in range(2):
    cache = {name: torch.tanh(embed(node)) for name, node in nodes.items()}
    for a in nodes:
        loss = score(cache[a] * cache[(a + 3) % 6]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())
"""
AVERAGE = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
average = None
for _ in range(6):
    x = torch.randn(16, 6)
    error = (net(x) - x.sum(1, keepdim=True)).square().mean()
    average = error if average is None else 0.9 * average + 0.1 * error
    loss = error + 0.1 * (error - average).abs()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
RETAINED = """
import torch

torch.manual_seed(0)
encoder, head = torch.nn.Linear(8, 16), torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
x, y = torch.randn(32, 8), torch.randn(32, 1)
for _ in range(2):
    features = torch.tanh(encoder(x))
    for _ in range(4):
        loss = (head(features) - y).square().mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        print(loss.item())
"""
SICK = {
    "closure": (CLOSURE, "features", "features = torch.tanh(encoder(x))"),
    "attribute": (ATTRIBUTE, "centres.table", "self.table = self.net"),
    "list": (LIST, "targets", "targets.append"),
    "table": (TABLE, "cache", "cache = {"),
    "average": (AVERAGE, "average", "average = error"),
}
CURED = {
    "closure": CLOSURE.replace("torch.tanh(encoder(x))", "torch.tanh(encoder(x)).detach()"),
    "attribute": ATTRIBUTE.replace(".mean(1)\n", ".mean(1).detach()\n"),
    "list": LIST.replace("torch.tanh(self.net(state))", "torch.tanh(self.net(state)).detach()"),
    "table": TABLE.replace("torch.tanh(embed(node))", "torch.tanh(embed(node)).detach()"),
    "average": AVERAGE.replace("0.1 * error\n    loss", "0.1 * error.detach()\n    loss").replace(
        "error if average", "error.detach() if average"
    ),
    "retained": RETAINED,
}


def report(folder: Path, script: str) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(script)
    ran = nanodoc("run", "--output", "json=r.json", "train.py", cwd=folder)
    return json.loads((folder / "r.json").read_text()), ran.stdout


@pytest.mark.parametrize("name", SICK)
def test_the_tensor_and_its_line_are_named(name: str, tmp_path: Path) -> None:
    script, variable, line = SICK[name]
    findings = report(tmp_path, script)[0]["findings"]
    assert [f["code"] for f in findings] == ["ND503"]
    assert findings[0]["title"].startswith(f"{variable} ")
    assert findings[0]["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", line)
    assert findings[0]["fixes"][0]["verified"] is True


@pytest.mark.parametrize("name", CURED)
def test_what_is_detached_or_retained_is_left_alone(name: str, tmp_path: Path) -> None:
    found, printed = report(tmp_path, CURED[name])
    named = [f["code"] for f in found["findings"] if f["severity"] != "info"]
    assert "ND503" not in named
    assert "ND510" not in named
    assert printed == python("train.py", cwd=tmp_path).stdout
