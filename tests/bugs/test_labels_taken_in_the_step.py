"""Labels that a step takes out of the very ids that its decoder reads, without a shift, were told at
the line of the data that makes both."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
from torch import nn


def collate(rows):
    return torch.stack([row % 20 for row in rows])


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))

    def train_step(model, batch, optimizer):
        given = batch[:, :-1]
        wanted = batch[:, :-1]  # meant: 1:
        loss = nn.functional.cross_entropy(model(given).reshape(-1, 20), wanted.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    data = torch.utils.data.DataLoader(
        torch.randint(20, (240, 12)), batch_size=8, collate_fn=collate
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return dict(model=model, train_step=train_step, optimizer=optimizer, data=data, max_steps=30)
"""


def test_the_line_is_that_of_the_step(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(RECIPE)
    found = [f for f in run_training(f"{file}:build", Config()).findings if f.code == "ND117"]
    at = [f.culprit.location.line for f in found if f.culprit.location]
    assert at == [line_of(str(file), "# meant: 1:")]


BY_HAND = """
import torch
from torch import nn


def collate(rows):
    ids = torch.stack([row % 20 for row in rows])
    return {"input_ids": ids, "labels": ids.clone()}


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))

    def loss_fn(model, batch):
        scores = model(batch["input_ids"])
        return nn.functional.cross_entropy(scores.view(-1, 20), batch["labels"].view(-1))

    data = torch.utils.data.DataLoader(
        torch.randint(20, (240, 12)), batch_size=8, collate_fn=collate
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return dict(model=model, loss_fn=loss_fn, optimizer=optimizer, data=data, max_steps=30)
"""


def test_labels_as_transformers_takes_them_in_a_loss_by_hand(tmp_path: Path) -> None:
    """The labels are as they should be: the loss was to shift them."""
    file = tmp_path / "train.py"
    file.write_text(BY_HAND)
    found = [f for f in run_training(f"{file}:build", Config()).findings if f.code == "ND117"]
    at = [f.culprit.location.line for f in found if f.culprit.location]
    assert at == [line_of(str(file), "nn.functional.cross_entropy")]
