"""optimizer.step() behind the loop over the batches, not in it: zero_grad() was blamed, which stands
where it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(160, 8), torch.arange(160) % 3)
loader = torch.utils.data.DataLoader(data, batch_size=16)


def train(epoch):
    {step}


for epoch in range(12):
    train(epoch)
"""
PARTS = """for inputs, labels in loader:
        for part in range(4):
            optimizer.zero_grad()  # once too often
            loss = nn.functional.cross_entropy(model(inputs[part::4]), labels[part::4])
            (loss / 4).backward()
        optimizer.step()"""
WHOLE = """for inputs, labels in loader:
        optimizer.zero_grad()  # in the loop
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
"""


@pytest.mark.parametrize(
    ("step", "line"),
    [(WHOLE + "    optimizer.step()  # behind", "# behind"), (PARTS, "# once too often")],
)
def test_the_step_is_blamed(tmp_path: Path, step: str, line: str) -> None:
    text = SCRIPT.replace("{step}", step)
    (tmp_path / "train.py").write_text(text)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    number = 1 + next(i for i, code in enumerate(text.splitlines()) if line in code)
    assert "warning[ND622]" in done.stderr
    assert f"--> train.py:{number}:" in done.stderr
