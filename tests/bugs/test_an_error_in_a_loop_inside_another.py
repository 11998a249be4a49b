"""An exception in a step, in a loop over batches inside one over epochs of the same function, was
told as one "outside the training steps"."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
batches = [(torch.randn(4, 8), torch.randn(4, 1)) for _ in range(5)]
for epoch in range(3):
    for number, (x, y) in enumerate(batches):
        loss = (net(x) - y).square().mean()
        if epoch == 1 and number == 2:
            raise KeyError("no such label")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_the_step_is_known(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    # stdout is the script's
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    first = json.loads((tmp_path / "r.json").read_text())["findings"][0]
    assert (first["code"], first["step"], first["phase"]) == ("ND709", 7, "forward")
    assert first["culprit"]["location"]["line"] == line_of(path, "raise KeyError")
