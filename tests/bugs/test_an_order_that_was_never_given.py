"""ND153 told of rows that are shuffled in a branch that the run did not take."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from nanodoc.trace.branches import MAYBE, NEVER, RAN, ran
from tests.helpers import line_of, nanodoc

SCRIPT = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--noise", default="none")
args = parser.parse_args()
CONFIG = {"mode": args.noise}
torch.manual_seed(0)
y = torch.arange(3).repeat_interleave(40)
x = y[:, None] + 0.3 * torch.randn(120, 4)
{test}:
    y = y[torch.randperm(120)]
model = nn.Linear(4, 3)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
for a, b in DataLoader(TensorDataset(x, y), 24, shuffle=True):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(a), b).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "test",
    [
        'if args.noise == "labels"',
        'if CONFIG["mode"] in ("labels", "both") and args.noise',
        'if any(len(word) == 6 for word in args.noise.split(","))',  # not to be read: no evidence
    ],
)
def test_what_stands_in_an_if(tmp_path: Path, test: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("{test}", test))
    for noise, told in (("none", False), ("labels", "any(" not in test)):
        out = tmp_path / f"{noise}.json"
        options = ("--output-format", "json", "--output", out.name)
        done = nanodoc("run", *options, path.name, "--", "--noise", noise, cwd=tmp_path)
        assert out.exists(), done.stderr
        found = [f for f in json.loads(out.read_text())["findings"] if f["code"] == "ND153"]
        assert bool(found) == told, noise
        for finding in found:
            line = line_of(path, "y = y[torch.randperm(120)]")
            assert finding["culprit"]["location"]["line"] == line


@pytest.mark.parametrize(
    ("code", "states"),
    [
        ("a = 1\nif flag:\n    b = 2\nelse:\n    c = 3", "a ran, b ran, c never"),
        ("if not flag or name == 'x':\n    b = 2\nelse:\n    c = 3", "b never, c ran"),
        ("if other():\n    b = 2\nelif flag:\n    c = 3\nd = 4", "b maybe, c maybe, d ran"),
        ("if flag and other():\n    b = 2", "b maybe"),
        ("if other() and not flag:\n    b = 2", "b never"),
        ("name = 'x'\nif name == 'x':\n    b = 2\nname = 'y'", "b maybe"),
        ("try:\n    a = 1\nexcept OSError:\n    b = 2", "a ran, b maybe"),
        ("for i in range(3):\n    a = 1", "a ran"),
        ("def f():\n    if other():\n        return 1\n    b = 2", "b maybe"),
        ("def f():\n    if flag:\n        return 1\n    b = 2", "b never"),
        ("def f():\n    if not flag:\n        return 1\n    b = 2", "b ran"),
        ("def f(flag):\n    if flag:\n        b = 2", "b maybe"),
        ("def f():\n    if CONFIG.deep['key']:\n        b = 2", "b maybe"),
        ("match name:\n    case 'y':\n        b = 2", "b maybe"),
    ],
)
def test_which_statements_ran(code: str, states: str) -> None:
    module = ast.parse(code)
    scope = module.body[0] if isinstance(module.body[0], ast.FunctionDef) else module
    assert isinstance(scope, (ast.FunctionDef, ast.Module))
    found = ran(scope, module, {"flag": True, "name": "y"})
    told = {
        node.targets[0].id: found[id(node)]
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert set(told.values()) <= {RAN, MAYBE, NEVER}
    wanted = dict(pair.split() for pair in states.split(", "))
    assert {name: told[name] for name in wanted} == wanted
