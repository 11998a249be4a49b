"""A model that has got other parameters than it had."""

from __future__ import annotations

import warnings
from collections import UserDict
from collections.abc import Callable

import pytest
import torch
from torch import nn

from nanodoc.tensors.modules import KnownParts


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def wrapped(net: nn.Sequential) -> None:
    net[0] = nn.Sequential(net[0], nn.Linear(2, 2))


def another_weight(net: nn.Sequential) -> None:
    net[1][0].weight = nn.Parameter(torch.ones(2, 2))


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a further layer": lambda net: net.append(nn.Linear(2, 2)),
    "a layer inside of one that had none": lambda net: net[1][1].add_module("x", nn.PReLU()),
    "an adapter around a layer": wrapped,
    "another parameter in its place": another_weight,
    "a further parameter": lambda net: net[1][1].register_parameter(
        "p", nn.Parameter(torch.ones(1))
    ),
    "a layer less": lambda net: net.pop(1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen(what: str) -> None:
    net = model()
    known = KnownParts(net)
    assert known.parameters_stay
    CHANGES[what](net)
    assert not known.parameters_stay
    assert not known.parameters_stay


def test_training_it_is_none() -> None:
    net = model()
    known = KnownParts(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.eval()
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    net.register_buffer("steps", torch.zeros(()))
    assert known.parameters_stay


def test_layers_without_any_may_come_and_go() -> None:
    """As one that a forward pass makes when it is first needed, or anew each time."""
    net = model()
    known = KnownParts(net)
    for _ in range(3):
        net[1][1] = nn.Tanh()
        net.add_module("made", nn.ReLU())
        assert known.parameters_stay
    another_weight(net)
    assert not known.parameters_stay


def test_a_dictionary_of_ones_own() -> None:
    net = model()
    known = KnownParts(net)
    net[0]._parameters = UserDict(net[0]._parameters)  # type: ignore[assignment]  # torch lets it
    assert known.parameters_stay


def test_a_scripted_model_has_its_parts() -> None:
    """Whatever stands for them is made anew each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.13: of torch.jit
        net = torch.jit.script(model())
    assert KnownParts(net).parameters_stay
