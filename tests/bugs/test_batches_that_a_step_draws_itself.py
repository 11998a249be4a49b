"""A loop that draws its batches inside of its body had no batch: what is compared with a part of one
was not known to come from the data. And a trainer's short loops ended too often for their state to be
kept, so that none of their steps could be run again when the script was over."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

DRAWING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(320, 4)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=32)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
batches = iter(loader)
for step in range(10):
    inputs, wanted = next(batches)
    loss = ((model(inputs) - wanted) ** 2).mean()  # all pairs
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

TRAINER = """
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 4)

class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, number):
        inputs, wanted = batch
        return ((self.net(inputs) - wanted) ** 2).mean()  # all pairs

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

trainer = L.Trainer(
    max_epochs=12, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(TensorDataset(x, x.sum(1)), batch_size=32))
"""


@pytest.mark.parametrize("text", [DRAWING, TRAINER], ids=["next", "lightning"])
def test_all_pairs_are_told(text: str, tmp_path: Path) -> None:
    if text is TRAINER:
        pytest.importorskip("lightning")
    file = tmp_path / "train.py"
    file.write_text(text)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "critical[ND111]" in done.stderr, done.stderr
    assert f"--> train.py:{line_of(file, '# all pairs')}:" in done.stderr
    assert "the last step raised" not in done.stderr
