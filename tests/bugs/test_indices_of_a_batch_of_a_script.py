"""A script's guilty sample was named by an index of another loader's batch, by one that a collate
function had moved, by a row of a packed batch, or not at all; of a Subset, only by its place in the
Subset; and a sampler that gives tuples made the script fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
X, Y = torch.randn(64, 6), torch.randint(0, 3, (64,))
X[37, 2] = BAD
data = TensorDataset(X, Y)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

class Batches:
    def __iter__(self):
        yield from ORDER
    def __len__(self):
        return 8

def rest(samples):
    samples = CHOSEN
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

"""
END = "\nprint(sum(p.sum().item() for p in model.parameters()))\n"
BUCKETS = "for x, y in DataLoader(data, batch_sampler=Batches()):\n    step(x, y)"
COLLATED = "for x, y in DataLoader(data, 8, shuffle=True, collate_fn=rest):\n    step(x, y)"
AHEAD = """
def ahead(loader):
    drawn = iter(loader)
    following = next(drawn, None)
    while following is not None:
        batch, following = following, next(drawn, None)
        yield batch

for x, y in ahead(DataLoader(data, 8, shuffle=True)):
    step(x, y)
"""
TOGETHER = """
other = TensorDataset(torch.randn(64, 6), Y)
for (x, y), (u, v) in zip(DataLoader(data, 8, shuffle=True), DataLoader(other, 8, shuffle=True)):
    loss = F.cross_entropy(model(x), y) + F.cross_entropy(model(u), v)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TUPLES = """
class Scaled(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, key):
        return X[key[0]] * key[1], Y[key[0]]

for x, y in DataLoader(Scaled(), batch_sampler=Batches()):
    step(x, y)
"""
PACKED = """
LENGTHS = [3 + i % 7 for i in range(64)]

class Documents(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        tokens = torch.zeros(LENGTHS[i], 6) + 0.1 * i
        tokens[1] = X[i]
        return tokens, Y[i]

def packed(samples):
    lengths = torch.tensor([len(x) for x, _ in samples])
    return torch.cat([x for x, _ in samples]), torch.stack([y for _, y in samples]), TOLD

def train(loader):
    for tokens, y, told in loader:
        lengths = LENGTHS_OF
        means = [part.mean(0) for part in model(tokens).split(lengths.tolist())]
        loss = F.cross_entropy(torch.stack(means), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

order = torch.randperm(64).split(8)
train(DataLoader(Documents(), batch_sampler=order, collate_fn=packed))
"""
OF_PACKED = {
    "lengths": ("lengths", "told"),
    "offsets": ("F.pad(lengths.cumsum(0), (1, 0))", "told.diff()"),
    "owners": ("torch.arange(len(lengths)).repeat_interleave(lengths)", "told.bincount()"),
}


def _packed(name: str) -> str:
    told, lengths = OF_PACKED[name]
    return PACKED.replace("TOLD", told).replace("LENGTHS_OF", lengths)


def _of(loader: str) -> str:
    """In a function, for worker processes."""
    return f"""
from torch.utils.data import *

def train():
    for x, y in {loader}:
        step(x, y)

if __name__ == "__main__":
    train()
"""


ORDERS = {
    "tensors": "torch.randperm(64).split(8)",
    "arrays": "torch.randperm(64).view(8, 8).numpy()",
    "tuples": "[[(int(i), 1.0) for i in part] for part in torch.randperm(64).split(8)]",
}
CHOICES = {
    "left out": "[s for s in samples if s[1] != 0 or s[0].isnan().any()]",
    "sorted": "sorted(samples, key=lambda sample: float(sample[0][0]))",
}
LOADERS = {
    "workers": "DataLoader(data, 8, shuffle=True, num_workers=2)",
    "weights": "DataLoader(data, 8, sampler=WeightedRandomSampler(torch.ones(64), 640))",
    "sampled": "DataLoader(data, 8, sampler=SubsetRandomSampler(range(20, 60)))",
    "joined": "DataLoader(ConcatDataset([data]), 8, shuffle=True, persistent_workers=True, "
    "num_workers=1)",
}
SUBSETS = {
    "subset": ("DataLoader(Subset(data, range(5, 64)), 8, shuffle=True)", [32]),
    "subset of a subset": (
        "DataLoader(Subset(Subset(data, range(10, 64)), range(20, 50)), 8, shuffle=True)",
        [7],
    ),
    "subset in workers": (
        "DataLoader(Subset(data, range(60, 8, -1)), 8, shuffle=True, num_workers=2)",
        [23],
    ),
    "out of order": ("DataLoader(data, 8, shuffle=True, num_workers=2, in_order=False)", []),
}
SCRIPTS: dict[str, tuple[str, str, str, list[int]]] = {
    "tensors": (BUCKETS, ORDERS["tensors"], "samples", [37]),
    "arrays": (BUCKETS, ORDERS["arrays"], "samples", [37]),
    "drawn ahead": (AHEAD, "[]", "samples", [37]),
    "in order": (COLLATED, "[]", "[s for s in samples]", [37]),
    "left out": (COLLATED, "[]", CHOICES["left out"], []),
    "sorted": (COLLATED, "[]", CHOICES["sorted"], []),
    "two loaders": (TOGETHER, "[]", "samples", []),
    "tuples": (TUPLES, ORDERS["tuples"], "samples", []),
    **{name: (_packed(name), "[]", "samples", [37]) for name in OF_PACKED},
    **{name: (_of(loader), "[]", "samples", [37]) for name, loader in LOADERS.items()},
    **{name: (_of(loader), "[]", "samples", row) for name, (loader, row) in SUBSETS.items()},
}


def _written(folder: Path, name: str, bad: str) -> Path:
    body, order, chosen, _ = SCRIPTS[name]
    head = HEAD.replace("BAD", bad).replace("ORDER", order).replace("CHOSEN", chosen)
    path = folder / "train.py"
    path.write_text(head + body + END)
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_the_right_index_is_told(name: str, tmp_path: Path) -> None:
    script = _written(tmp_path, name, "float('nan')")
    report = json.loads(nanodoc("run", "--output-format", "json", script.name, cwd=tmp_path).stderr)
    found = report["findings"][0]
    assert found["code"] == "ND101"
    assert len(found["culprit"]["samples"]) == 1
    assert found["culprit"]["dataset_indices"] == SCRIPTS[name][3]
    whole = [row["value"] for row in found["evidence"] if "Subset" in row["label"]]
    assert whole == (["37"] if name.startswith("subset") else [])


@pytest.mark.parametrize("name", ["tensors", "drawn ahead", "two loaders", "tuples"])
def test_a_healthy_one_prints_as_under_python(name: str, tmp_path: Path) -> None:
    script = _written(tmp_path, name, "0.5")
    done = nanodoc("run", script.name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == python(script.name, cwd=tmp_path).stdout
    assert "warning[" not in done.stderr + done.stdout
