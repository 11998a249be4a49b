"""ND681: collate functions that leave samples out of their batch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from nanodoc.examination.uncollated import uncollated
from tests.helpers import line_of, nanodoc


class Data:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        drawn = torch.Generator().manual_seed(index)
        ids = torch.randint(1, 30, (4 + index * 7 % 11,), generator=drawn)
        return {"ids": ids.tolist(), "name": f"text {index}", "label": index % 3}


def first_only(samples: list[Any]) -> Any:
    return {"ids": torch.tensor(samples[0]["ids"])[None], "label": torch.tensor([0])}


def first_two(samples: list[Any]) -> Any:
    return [torch.tensor(sample["ids"]) for sample in samples[:2]]


def packed(samples: list[Any]) -> Any:
    """One row of 100 ids, which leaves out what does not fit."""
    ids = [number for sample in samples for number in sample["ids"]][:100]
    return torch.tensor(ids + [0] * (100 - len(ids)))[None]


def names_only(samples: list[Any]) -> Any:
    return {"first": torch.tensor(samples[0]["ids"]), "names": [s["name"] for s in samples]}


def summed(samples: list[Any]) -> Any:
    return torch.tensor([sum(sum(sample["ids"]) for sample in samples)])


def labels_of_few(samples: list[Any]) -> Any:
    """Of samples without a certain label nothing is wanted."""
    return torch.tensor([s["ids"][:4] for s in samples if s["label"] != 2])


def shuffled(samples: list[Any]) -> Any:
    ids = torch.tensor([s["ids"][:4] for s in samples])
    return ids[torch.randperm(len(ids))]


def one_of_each_label(samples: list[Any]) -> Any:
    """Chosen by what they are."""
    return torch.stack(
        [
            torch.tensor(next(s for s in samples if s["label"] == label)["ids"][:4])
            for label in range(3)
        ]
    )


def the_longest(samples: list[Any]) -> Any:
    return [s["ids"] for s in sorted(samples, key=lambda s: -len(s["ids"]))[:4]]


class Box:
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples


@pytest.mark.parametrize(
    ("collate", "read"),
    [
        (first_only, 1),
        (first_two, 2),
        (packed, None),
        (names_only, None),
        (summed, None),
        (labels_of_few, None),
        (shuffled, None),
        (one_of_each_label, None),
        (the_longest, None),
        (Box, None),  # what it holds can't be compared
        (default_collate, None),
    ],
)
def test_which_samples_come_into_the_batch(collate: Any, read: int | None) -> None:
    found = uncollated(Data(), collate, 16, time.monotonic() + 60)
    assert (None if found is None else (found.read, found.of)) == (
        None if read is None else (read, 16)
    )


def test_no_batch_of_samples_is_known() -> None:
    assert uncollated(Data(), first_only, None, time.monotonic() + 60) is None
    assert uncollated(Data(), first_only, 16, time.monotonic() - 1) is None


SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :4].argmax(1)


def collate(samples):
    x = torch.stack([one for one, _ in samples])
    y = torch.stack([one for _, one in samples])
    return x[:1], y[:1]


model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True, collate_fn=collate):
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize("sick", [True, False])
def test_a_script_whose_batches_have_one_row(tmp_path: Path, *, sick: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT if sick else SCRIPT.replace("x[:1], y[:1]", "x, y"))
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"]
    told = [(f["code"], f["culprit"]["location"]["line"]) for f in found]
    assert told == ([("ND681", line_of(script, "return x[:1]"))] if sick else [])
