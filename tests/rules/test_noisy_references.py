"""Networks that a step asks and does not train: in training mode by mistake, or on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def network(*noisy: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 12), *noisy, nn.ReLU(), nn.Linear(12, 4))


def codes(
    other: nn.Module,
    *,
    into: nn.Module | None = None,
    moves: Callable[[nn.Module, nn.Module], None] = lambda other, model: None,
) -> set[str]:
    """Of a step that takes the answers of `other` as targets, or as inputs of `into`."""
    torch.manual_seed(0)
    x = torch.randn(10, 16, 6)
    model = network() if into is None else into

    def train_step(model: nn.Module, batch: torch.Tensor, optimizer, scaler=None):  # type: ignore[no-untyped-def]
        optimizer.zero_grad()
        with torch.no_grad():
            answer = other(batch)
        labels = batch[:, :4].argmax(1)
        if into is None:
            scores = model(batch)
            loss = F.cross_entropy(scores, labels) + F.mse_loss(scores, answer)
        else:
            loss = F.cross_entropy(model(answer), labels)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            moves(other, model)
        return loss

    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        train_step=train_step,
        data=list(x),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


@pytest.mark.parametrize("layer", [nn.Dropout(0.2), nn.BatchNorm1d(12)], ids=["dropout", "norm"])
def test_a_teacher_in_training_mode(layer: nn.Module) -> None:
    assert "ND648" in codes(network(layer))
    assert "ND648" not in codes(network(layer).eval())


def test_a_network_without_such_layers_has_no_mode() -> None:
    assert "ND648" not in codes(network())


def averaged(other: nn.Module, model: nn.Module) -> None:
    for slow, fast in zip(other.parameters(), model.parameters(), strict=True):
        slow.data.lerp_(fast.data, 0.1)


def test_a_moving_average_may_drop() -> None:
    assert "ND648" not in codes(network(nn.Dropout(0.2)), moves=averaged)


def test_a_frozen_encoder_is_a_part_of_the_model() -> None:
    assert "ND648" not in codes(network(nn.Dropout(0.2)), into=nn.Linear(4, 4))
