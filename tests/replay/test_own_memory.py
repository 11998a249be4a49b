"""Weights that processes share are not written to while a step is run again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from nanodoc.replay.own_memory import OwnMemory, shared_parameter


def trained() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).share_memory()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    for state in optimizer.state.values():
        for value in state.values():
            value.share_memory_()
    return SimpleNamespace(model=model, optimizers=[optimizer])


def values(recipe: Any) -> list[torch.Tensor]:
    moments = [value for state in recipe.optimizers[0].state.values() for value in state.values()]
    return [*recipe.model.parameters(), *recipe.model.buffers(), *moments]


def test_what_is_written_meanwhile_is_written_to_copies() -> None:
    recipe = trained()
    shared = [value.data for value in values(recipe)]
    before = [value.clone() for value in shared]
    memory = OwnMemory(recipe)
    memory.begin()
    assert shared_parameter(recipe.model) is None
    assert all(torch.equal(a, b) for a, b in zip(values(recipe), before, strict=True))
    with torch.no_grad():
        for value in values(recipe):
            value.add_(1)
    assert all(torch.equal(a, b) for a, b in zip(shared, before, strict=True))
    shared[0].mul_(2)  # another process
    memory.end()
    assert shared_parameter(recipe.model) == "0.weight"
    assert torch.equal(recipe.model[0].weight, 2 * before[0])
    assert all(torch.equal(a, b) for a, b in zip(values(recipe)[1:], before[1:], strict=True))


def test_weights_of_this_process_alone_stay_where_they_are() -> None:
    model = torch.nn.Linear(2, 2)
    at = model.weight.data_ptr()
    memory = OwnMemory(SimpleNamespace(model=model, optimizers=[]))
    memory.begin()
    assert model.weight.data_ptr() == at
    memory.end()
