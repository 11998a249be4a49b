"""Exceptions told by their words alone: the user's own `raise`, Python's lookups, samples that fail
by themselves, indices that were caught."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import marked

TRAIN = """
import types
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

def recipe(hook, data=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    calls = [0]
    def loss_fn(model, batch):
        calls[0] += 1
        if calls[0] == 3:
            hook(model)
        return F.cross_entropy(model(batch[0]), batch[1])
    data = data or [(torch.randn(4, 4), torch.randint(0, 3, (4,))) for _ in range(4)]
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 6}

def own_memory(model):
    if model: raise RuntimeError("replay buffer out of memory: only 3 slots left")  # raises own_memory
def own_device(model):
    if model: raise RuntimeError("all clients must be on the same device, expected all tensors to be on the same device")  # raises own_device
def own_network(model):
    if model: raise RuntimeError("failed to connect to feature store: Connection refused")  # raises own_network
def a_key(model): {}["classes"]  # raises a_key
def an_attribute(model): types.SimpleNamespace().channels  # raises an_attribute
def unpacking(model): a, b = "1 2 3".split()  # raises unpacking
class Silent(Exception):
    def __str__(self): raise ValueError("no words")
def without_words(model): raise Silent  # raises without_words
class Stop(BaseException): pass
def no_exception(model): raise Stop("enough")  # raises no_exception

def build_own_memory(): return recipe(own_memory)
def build_own_device(): return recipe(own_device)
def build_own_network(): return recipe(own_network)
def build_a_key(): return recipe(a_key)
def build_an_attribute(): return recipe(an_attribute)
def build_unpacking(): return recipe(unpacking)
def build_without_words(): return recipe(without_words)
def build_no_exception(): return recipe(no_exception)

class Joined(Dataset):
    def __len__(self): return 12
    def __getitem__(self, index):
        parts = [torch.ones(2, 2), torch.ones(2 if index != 9 else 3, 2)]
        return torch.cat(parts, 1).flatten()[:4], index % 3  # raises build_in_a_sample

def build_in_a_sample(): return recipe(lambda model: None, DataLoader(Joined(), batch_size=4))

def build_caught():
    table = torch.nn.Embedding(5, 4)
    def loss_fn(model, batch):
        try:
            extra = table(batch[1] + 4)
        except IndexError:
            extra = 0
        return F.cross_entropy(model(batch[0] + extra), batch[1])
    made = recipe(lambda model: None)
    made["loss_fn"] = loss_fn
    return made
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


@pytest.mark.parametrize(
    "name",
    [
        "own_memory",
        "own_device",
        "own_network",
        "a_key",
        "an_attribute",
        "unpacking",
        "without_words",
        "no_exception",
    ],
)
def test_it_is_an_exception_of_the_users_and_nothing_more(tmp_path: Path, name: str) -> None:
    (finding,) = run_training(f"train.py:build_{name}", Config()).findings
    assert (finding.code, finding.step) == ("ND709", 2)
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == marked(tmp_path / "train.py", f"raises {name}")


def test_a_sample_that_fails_by_itself_is_no_ragged_batch(tmp_path: Path) -> None:
    finding = run_training("train.py:build_in_a_sample", Config()).findings[0]
    assert finding.code == "ND709"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == marked(
        tmp_path / "train.py", "raises build_in_a_sample"
    )


def test_an_index_out_of_range_that_the_code_catches_is_none_of_ours() -> None:
    assert not [
        one
        for one in run_training("train.py:build_caught", Config()).findings
        if one.code == "ND102"
    ]
