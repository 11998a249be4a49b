"""Two findings that had no line of the user's: what a loop keeps behind its optimizer's step, and
what goes wrong inside of a library's model that a library's trainer runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

LOOP = """
def train(model, optimizer):
    total = 0
    for epoch in range(3):
        for x, y in DataLoader(TensorDataset(X, Y), batch_size=8):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            total = total + loss  # keeps
    print(total.item())

model = Net()
train(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""
TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(0)
rows = [{"input_ids": r, "labels": r} for r in torch.randint(0, 40, (16, 8))]
config = GPT2Config(vocab_size=39, n_positions=8, n_embd=8, n_layer=1, n_head=1)
model = GPT2LMHeadModel(config)  # made
arguments = TrainingArguments("out", max_steps=4, use_cpu=True, report_to=[], disable_tqdm=True)
Trainer(model, arguments, train_dataset=rows).train()
"""


def test_what_is_kept_behind_the_step(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + LOOP)
    (found,) = watched(path).findings
    assert (found.code, found.culprit.location is not None) == ("ND510", True)
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, "# keeps")
    assert found.culprit.location.function == "train"


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_a_librarys_model_in_a_librarys_loop(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINER)
    found = watched(path).findings[0]
    assert found.code == "ND102"
    assert found.culprit.location is not None
    assert found.culprit.location.file.endswith("train.py")
    assert found.culprit.location.line == line_of(path, "# made")
    assert "modeling_gpt2.py" in str(dict(found.evidence)["in the library"])
