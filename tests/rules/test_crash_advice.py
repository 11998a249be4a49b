"""What helps against a crash must hold for the crash at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import marked

TRAIN = """
import json
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

def recipe(model, data, loss_fn=None):
    loss_fn = loss_fn or (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    return {"model": model, "loss_fn": loss_fn, "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 12}

def labelled(*labels):
    return recipe(nn.Linear(4, 3), [(torch.rand(len(labels), 4), torch.tensor(labels))])

def counted_from_one(): return labelled(1, 2, 3, 1, 2, 3)
def one_label_too_high(): return labelled(0, 1, 2, 1, 3, 0)

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.ids, self.positions, self.out = nn.Embedding(40, 8), nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, ids):
        return self.out((self.ids(ids) + self.positions(torch.arange(ids.shape[1]))).mean(1))

def too_long(): return recipe(Reader(), [(torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, dtype=torch.long))])
def new_token(): return recipe(Reader(), [(torch.full((2, 5), 43), torch.zeros(2, dtype=torch.long))])

class Bank(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("bank", torch.zeros(8, 3))

    def forward(self, x):
        bank = self.bank.clone()
        bank[torch.arange(len(x))] = self.body(x).bfloat16()
        return bank[: len(x)]

def half_in_a_bank(): return recipe(Bank(), [(torch.rand(4, 4), torch.zeros(4, dtype=torch.long))])

class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out, self.state = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 3), None

    def forward(self, x):
        y, state = self.rnn(x, self.state)
        self.state = state.detach()
        return self.out(y[:, -1])

def state_of_the_batch_before():
    sizes = (4, 4, 3)
    return recipe(Kept(), [(torch.rand(n, 6, 4), torch.zeros(n, dtype=torch.long)) for n in sizes])

def shorter_rows_in_a_smaller_batch():
    shapes = ((4, 5), (4, 5), (2, 4))
    return recipe(nn.Linear(5, 3), [(torch.rand(*shape), torch.zeros(shape[0], dtype=torch.long)) for shape in shapes])

class Nested(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        return {"user": {"history": torch.ones(3 + (i == 5))}, "y": torch.tensor(0)}

def nested():
    return recipe(nn.Linear(3, 3), DataLoader(Nested(), batch_size=4), lambda m, b: F.cross_entropy(m(b["user"]["history"][:, :3]), b["y"]))

class Twice:
    def __iter__(self):
        first = iter([torch.rand(2, 4)])
        while True:
            yield next(first), torch.zeros(2, dtype=torch.long)  # asks for more

def generator_that_asks_for_more(): return recipe(nn.Linear(4, 3), Twice())

class Shards(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        try:
            json.loads("{" if i == 6 else "1")  # parses
        except ValueError as error:
            raise KeyError("shard 3 is damaged") from error
        return torch.rand(4), 0

def damaged(): return recipe(nn.Linear(4, 3), DataLoader(Shards(), batch_size=4))

def state_of_others():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    wanted = recipe(model, [(torch.rand(2, 4), torch.zeros(2, dtype=torch.long))])
    saved = torch.optim.Adam(reversed(list(model.parameters())))
    model(torch.rand(2, 4)).sum().backward()
    saved.step()
    wanted["optimizer"] = torch.optim.Adam(model.parameters())  # made in order
    wanted["optimizer"].load_state_dict(saved.state_dict())
    return wanted

def weighted():
    return recipe(nn.Linear(4, 3), [(torch.rand(2, 4), torch.tensor([0, 1]))], lambda m, b: F.cross_entropy(m(b[0]), b[1], weight=torch.ones(5)))

def other_layers():
    model = nn.Linear(4, 3)
    model.load_state_dict({"weight": torch.zeros(3, 4), "old_bias": torch.zeros(3)})
    return recipe(model, [])
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


def first(name: str) -> Finding:
    return run_training(f"train.py:{name}", Config()).findings[0]


@pytest.mark.parametrize(
    ("name", "code", "said", "unsaid"),
    [
        ("counted_from_one", "ND103", "(y - 1)", "classes"),
        ("one_label_too_high", "ND103", "at least 4 classes", "(y - 1)"),
        ("too_long", "ND102", "cut the sequences to 6", "tokenizer"),
        ("new_token", "ND102", "num_embeddings of at least 44", "positions"),
        ("half_in_a_bank", "ND707", "bfloat16, the first float32", "int64"),
        (
            "state_of_the_batch_before",
            "ND705",
            "a tensor kept from the batch before",
            "in_channels",
        ),
        ("shorter_rows_in_a_smaller_batch", "ND705", "an input of 5 features", "drop_last"),
        ("nested", "ND104", "write a collate function", "collate_fn=collate"),
    ],
)
def test_the_advice_fits(name: str, code: str, said: str, unsaid: str) -> None:
    finding = first(name)
    told = finding.explanation + " ".join(f"{fix.title} {fix.patch}" for fix in finding.fixes)
    assert finding.code == code
    assert said in told
    assert unsaid not in told


def test_a_generators_own_line_is_named() -> None:
    finding = first("generator_that_asks_for_more")
    assert finding.culprit.location is not None
    assert "asks for more" in finding.culprit.location.code


def test_what_an_exception_was_raised_from_is_told(tmp_path: Path) -> None:
    notes = [text for key, text in first("damaged").evidence if key == "note"]
    assert len(notes) == 1
    assert notes[0].startswith("raised from JSONDecodeError: ")
    assert notes[0].endswith(f"train.py:{marked(tmp_path / 'train.py', 'parses')}")


def test_the_lines_below_the_first_of_a_message_are_told() -> None:
    messages = [text for key, text in first("other_layers").evidence if key == "message"]
    assert messages == [
        'Missing key(s) in state_dict: "bias".',
        'Unexpected key(s) in state_dict: "old_bias".',
    ]


def test_an_optimizers_state_of_other_parameters(tmp_path: Path) -> None:
    finding = first("state_of_others")
    assert (finding.code, finding.culprit.kind, finding.culprit.parameter) == (
        "ND705",
        "optimizer",
        "0.weight",
    )
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == marked(tmp_path / "train.py", "made in order")
    assert "by position" in finding.explanation


def test_the_weights_of_a_loss_are_shown() -> None:
    assert "weight float32 [5]" in dict(first("weighted").evidence)["also given"]
