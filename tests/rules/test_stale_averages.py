"""Networks beside the model: averages of it, with and without their statistics, and others."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND653"
Follow = Callable[[nn.Module, nn.Module], None]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))


def codes(other: Callable[[nn.Module], nn.Module], follow: Follow) -> set[str]:
    torch.manual_seed(0)
    model = network()
    beside = other(model)

    def train_step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (x[:, 0] > 3).long())
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            follow(beside, model)
        return float(loss.detach())

    recipe = Recipe(
        model=model,
        train_step=train_step,
        data=list(torch.randn(10, 16, 6) + 3),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    )
    return {finding.code for finding in diagnose(recipe, 20)}


def frozen_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).eval().requires_grad_(False)


def training_copy(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False)


def stranger(model: nn.Module) -> nn.Module:
    return network().eval().requires_grad_(False)


def averaged(model: nn.Module) -> nn.Module:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)).eval()


def of_weights(average: nn.Module, model: nn.Module) -> None:
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(new, 0.1)


def of_everything(average: nn.Module, model: nn.Module) -> None:
    of_weights(average, model)
    for kept, new in zip(average.buffers(), model.buffers(), strict=True):
        kept.copy_(new)


def by_itself(average: nn.Module, model: nn.Module) -> None:
    of_weights(average, model)
    average(torch.randn(16, 6) + 3)


def not_at_all(average: nn.Module, model: nn.Module) -> None:
    pass


def by_torch(average: nn.Module, model: nn.Module) -> None:
    assert isinstance(average, AveragedModel)
    average.update_parameters(model)


def complex_copy(model: nn.Module) -> nn.Module:
    return nn.ModuleList(
        [frozen_copy(model), nn.ParameterList([torch.zeros(2, dtype=torch.cfloat)])]
    )


def lazy(model: nn.Module) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(12), nn.LazyBatchNorm1d()).eval()


def without_memory(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to("meta").eval()


def test_an_average_of_the_weights_alone() -> None:
    assert CODE in codes(frozen_copy, of_weights)


@pytest.mark.parametrize(
    ("other", "follow"),
    [
        (frozen_copy, of_everything),
        (training_copy, of_weights),
        (training_copy, by_itself),
        (stranger, not_at_all),
        (averaged, by_torch),
        (frozen_copy, not_at_all),
        (complex_copy, not_at_all),
        (lazy, not_at_all),
        (without_memory, not_at_all),
    ],
    ids=[
        *("with buffers", "in training mode", "with its own statistics", "a stranger", "of torch"),
        *("an anchor", "complex numbers", "lazy", "meta"),
    ],
)
def test_others(other: Callable[[nn.Module], nn.Module], follow: Follow) -> None:
    assert CODE not in codes(other, follow)
