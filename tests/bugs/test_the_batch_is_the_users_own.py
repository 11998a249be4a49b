"""A step that writes into its batch trained on other values under the watching: the batch was made
anew at every step. Batches that hold one container many times, or that cannot be copied, hung or
ended the run."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import nanodoc
from nanodoc.recipe.recipe import Recipe


def counting() -> tuple[Recipe, list[float], list[dict[str, Any]]]:
    """A step that counts in its batch how often it has seen it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data: list[dict[str, Any]] = [{"x": torch.randn(8, 4), "y": torch.randint(0, 3, (8,))}]
    losses: list[float] = []

    def step(model: nn.Module, batch: dict[str, Any], optimizer: Any) -> torch.Tensor:
        batch["seen"] = batch.get("seen", 0) + 1
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"]) / batch["seen"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return torch.as_tensor(loss)

    return Recipe(model=model, data=data, optimizer=optimizer, train_step=step), losses, data


def test_what_a_step_writes_into_its_batch_stays(tmp_path: Path) -> None:
    recipe, bare, _ = counting()
    assert recipe.train_step is not None
    for _ in range(4):
        recipe.train_step(recipe.model, next(iter(recipe.data)), recipe.optimizers[0])
    watched, losses, data = counting()
    nanodoc.examine(watched, steps=4, snapshot_dir=str(tmp_path))
    assert losses[:4] == bare
    assert data[0]["seen"] == 4  # what is run again counts in containers of its own
    assert torch.equal(recipe.model.weight, watched.model.weight)  # type: ignore[arg-type]


def shared() -> Any:
    deep: Any = torch.zeros(1)
    for _ in range(30):
        deep = [deep, deep]
    return deep


@pytest.mark.parametrize("wrapped", [dict, types.MappingProxyType])
@pytest.mark.parametrize("beside", [None, shared])
def test_batches_of_odd_containers(wrapped: Any, beside: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    batch = wrapped(
        {
            "x": torch.randn(8, 4),
            "y": torch.randint(0, 3, (8,)),
            "beside": beside() if beside is not None else 0,
        }
    )
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch["x"]), batch["y"]),
        data=[batch] * 4,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    report = nanodoc.examine(recipe, steps=4, snapshot_dir=str(tmp_path))
    assert "ND709" not in [finding.code for finding in report.findings]
    assert report.run.steps_run == 4
