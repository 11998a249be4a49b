"""Everything that a step reaches by name is where it would be without us: counters, lists, arrays,
generators, objects. What cannot be put back is said, and no experiment is made of it."""

from __future__ import annotations

import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.experiments.run import ReachedState
from nanodoc.loop.grad_graph_run import run_graph_check
from nanodoc.pipeline.run import run_training
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.closure_state import KeptState
from tests.helpers import run_engine

COUNT = 0


class Meter:
    def __init__(self) -> None:
        self.total, self.seen = 0.0, []


def stateful(**more: Any) -> tuple[Recipe, dict[str, Any]]:
    global COUNT
    COUNT = 0
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema, array, numbers = torch.zeros(1), np.zeros(2), {"steps": [0]}
    names, meter, calls = set(), Meter(), 0
    draw, rng, generator = random.Random(0), np.random.default_rng(0), torch.Generator()

    def train_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        global COUNT
        nonlocal calls
        calls, COUNT = calls + 1, COUNT + 1
        ema.add_(1)
        array[:] += 1
        numbers["steps"][0] += 1
        names.add(calls)
        meter.total += 1
        meter.seen.append(draw.random() + rng.random() + float(torch.rand(1, generator=generator)))
        optimizer.zero_grad()
        loss = model(batch).pow(2).mean() * (1 + 0 * ema)
        loss.backward()
        optimizer.step()
        return loss  # type: ignore[no-any-return]

    data = [torch.randn(4, 3) for _ in range(6)]
    recipe = Recipe(model=model, train_step=train_step, data=data, optimizer=optimizer, **more)

    def state() -> dict[str, Any]:
        return {
            "ema": float(ema),
            "array": array.tolist(),
            "numbers": numbers["steps"][0],
            "names": sorted(names),
            "meter": (meter.total, list(meter.seen)),
            "calls": (calls, COUNT),
        }

    return recipe, {"state": state}


def expected(steps: int) -> dict[str, Any]:
    recipe, reach = stateful()
    for batch in list(recipe.data)[:steps]:
        recipe.train_step(recipe.model, batch, recipe.optimizer, None)  # type: ignore[misc]
    return reach["state"]()  # type: ignore[no-any-return]


def test_check_grad_graph_moves_it_once_a_step() -> None:
    recipe, reach = stateful()
    run_graph_check(recipe, BuildFacts(), torch.device("cpu"), None, 3)
    assert reach["state"]() == expected(3)


def test_a_run_moves_it_once_a_step() -> None:
    recipe, reach = stateful(max_steps=5)
    run_engine(recipe, steps=5)
    assert reach["state"]() == expected(5)


def test_it_is_put_back() -> None:
    recipe, reach = stateful()
    kept = KeptState(recipe)
    before = reach["state"]()
    recipe.train_step(recipe.model, recipe.data[0], recipe.optimizer, None)  # type: ignore[misc]
    assert reach["state"]() != before
    kept.restore()
    assert reach["state"]() == before
    assert kept.lost == []


def test_an_iterator_cannot_be_put_back() -> None:
    recipe, _ = stateful()
    more = iter([torch.ones(4, 3)] * 100)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return torch.log(model(next(more)) * 0).mean()

    sick = Recipe(model=recipe.model, loss_fn=loss_fn, data=recipe.data, max_steps=2)
    assert ReachedState(sick).lost == ["more (a list_iterator)"]
    KeptState(sick).restore()


def test_no_experiment_is_made_of_what_cannot_be_put_back(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ITERATOR)
    config = Config(device="cpu", snapshot_dir=str(tmp_path))
    report = run_training(f"{tmp_path / 'train.py'}:build", config)
    finding = report.findings[0]
    assert finding.name == "not-reproduced"
    assert [row["outcome"] for row in finding.experiments] == ["not reproduced"]
    assert not any(fix.verified for fix in finding.fixes)
    told = dict(report.not_checked)["experiments and fixes"]
    assert told == "the step reads more (a cycle), which replay can't restore"


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class AttrDict(dict):  # type: ignore[type-arg]  # as configurations are written
    __getattr__ = dict.get


class Corpus:
    def __init__(self, folder: Path) -> None:
        np.arange(4.0).tofile(folder / "rows")
        memory = np.memmap(folder / "rows", dtype=np.float64, mode="r")
        with warnings.catch_warnings(action="ignore"):
            self.rows = torch.from_numpy(memory)
        self.mask = torch.ones(1).expand(4)


class Prefetcher:
    def __init__(self) -> None:
        self.thread = threading.Thread(target=lambda: None)


def reaching(thing: Any) -> Recipe:
    model = torch.nn.Linear(3, 1)
    return Recipe(model=model, loss_fn=lambda m, b: m(b).mean() * (thing is not None), data=[])


def test_odd_objects_are_left_alone(tmp_path: Path) -> None:
    """One that answers with exceptions, a dict with attributes, memory mapped from a file that may
    not be written to, a tensor whose elements share memory."""
    for thing in (Hostile(), AttrDict(smoothing=0.1), Corpus(tmp_path)):
        kept = KeptState(reaching(thing))
        assert kept.lost == []
        kept.restore()


def test_an_object_with_a_thread_is_not_put_back() -> None:
    assert ReachedState(reaching(Prefetcher())).lost == ["thing (a Prefetcher with a thread)"]


def test_an_attribute_is_no_global() -> None:
    """`batch.data` has nothing to do with a global that is called data."""
    space: dict[str, Any] = {"data": iter([1])}
    exec("def loss_fn(model, batch): return model(batch).data.mean()", space)
    recipe = Recipe(model=torch.nn.Linear(3, 1), loss_fn=space["loss_fn"], data=[])
    assert ReachedState(recipe).lost == []


def test_more_than_can_be_copied_is_not_put_back_by_half() -> None:
    rows = [[0.0] * 1000 for _ in range(1000)]
    many = [[object() for _ in range(100)] for _ in range(300)]
    assert ReachedState(reaching(rows)).lost == []
    state = ReachedState(reaching(many))
    assert state.lost == ["more than 20000 objects outside the model"]
    assert state.copies == []


ITERATOR = """
import itertools
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    more = itertools.cycle([1.0, 0.0])
    def loss_fn(model, batch):
        return torch.log(model(batch).abs() * next(more)).mean()
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(4, 3)] * 4,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 4}
"""
