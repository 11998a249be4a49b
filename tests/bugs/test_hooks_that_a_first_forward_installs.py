"""Hooks that a model registers in its first forward pass, as transformers' capture of hidden states
does: that step was run again and put back through dict's methods, which break an OrderedDict, and
the script ended with a KeyError of torch's."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from nanodoc.replay.objects import contents
from tests.helpers import nanodoc, python

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.seen, self.installed = nn.Linear(4, 4), [], False

    def forward(self, x):
        if not self.installed:
            self.installed = True
            for _ in range(2):
                self.body.register_forward_hook(lambda module, args, out: self.seen.append(1))
        self.seen.clear()
        return self.body(x)

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    net(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
print(len(net.body._forward_hooks), len(net.seen), net.body.weight.double().sum().item())
"""


def test_the_script_runs_as_it_does_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == bare.stdout


def test_an_ordered_dict_is_put_back() -> None:
    value = OrderedDict(one=1, two=2)
    restore = contents(value)
    value["three"] = 3
    value.move_to_end("one")
    restore()
    assert list(value.items()) == [("one", 1), ("two", 2)]
    value["four"] = 4
    assert list(value) == ["one", "two", "four"]
