"""Labels of padding that the loss counts: where a mask of the batch is 0, every label is one class. Labels that are left
out there, and a mask that the loss is multiplied with, are right."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

SOURCE = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

g = torch.Generator().manual_seed(0)
DATA = []
for _ in range(128):
    ids = torch.randint(3, 40, (int(torch.randint(4, 16, (1,), generator=g)),), generator=g)
    DATA.append({"ids": ids.tolist(), "tags": (ids % 4).tolist()})


def collate(samples):
    longest = max(len(sample["ids"]) for sample in samples)
    ids, mask, tags = [], [], []
    for sample in samples:
        missing = longest - len(sample["ids"])
        ids.append(sample["ids"] + [0] * missing)
        mask.append([1] * len(sample["ids"]) + [0] * missing)
        tags.append(sample["tags"] + [LEFT] * missing)
    return {"ids": torch.tensor(ids), "mask": torch.tensor(mask), "tags": torch.tensor(tags)}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, ids, mask):
        return self.head(self.encoder(self.embedding(ids), src_key_padding_mask=mask == 0))


def loss_fn(model, batch):
    scores = model(batch["ids"], batch["mask"])
    LOSS


def build():
    torch.manual_seed(0)
    model = Tagger()
    data = DataLoader(DATA, batch_size=16, shuffle=True, collate_fn=collate)
    return dict(model=model, loss_fn=loss_fn, data=data, optimizer=torch.optim.Adam(model.parameters(), 1e-3),
                max_steps=24)
"""
WHOLE = 'return F.cross_entropy(scores.flatten(0, 1), batch["tags"].flatten())'
MASKED = """each = F.cross_entropy(scores.flatten(0, 1), batch["tags"].flatten(), reduction="none")
    mask = batch["mask"].flatten()
    return (each * mask).sum() / mask.sum()"""


def findings(folder: Path, left: int, loss: str) -> tuple[Finding, ...]:
    recipe = folder / "train.py"
    recipe.write_text(SOURCE.replace("LEFT", str(left)).replace("LOSS", loss))
    return run_training(f"{recipe}:build", Config(snapshot_dir=str(folder))).findings


def test_padding_that_has_a_class(tmp_path: Path) -> None:
    found = findings(tmp_path, 0, WHOLE)[0]
    assert (found.code, found.severity) == ("ND110", "warning")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(tmp_path / "train.py", "tags.append(")
    assert "padding with the label 0" in found.title


def test_padding_that_is_left_out(tmp_path: Path) -> None:
    assert "ND110" not in [found.code for found in findings(tmp_path, -100, WHOLE)]


def test_a_loss_that_is_masked(tmp_path: Path) -> None:
    assert "ND110" not in [found.code for found in findings(tmp_path, 0, MASKED)]
