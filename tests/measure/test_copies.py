"""Targets that lie in the input, and those that only look so."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanodoc.measure.copies import copies

Leaves = dict[str, list[torch.Tensor]]


@settings(max_examples=40, deadline=None)
@given(
    time=st.integers(2, 9),
    features=st.integers(1, 5),
    batches=st.integers(2, 5),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1.0, -3.0, 250.0]),
    data=st.data(),
)
def test_the_place_is_found(
    time: int, features: int, batches: int, seed: int, scale: float, data: st.DataObject
) -> None:
    torch.manual_seed(seed)
    place = data.draw(st.tuples(st.integers(0, time - 1), st.integers(0, features - 1)))
    x = [torch.randn(20, time, features) for _ in range(batches)]
    shift = 0.0 if scale == 1.0 else 7.0
    y = [scale * batch[:, place[0], place[1]] + shift for batch in x]
    if time * features < 2:
        return
    [found] = copies({"x": x, "y": y})
    assert (found.path, found.inside, found.places) == ("y", "x", (place,))
    assert found.equal == (scale == 1.0)
    assert found.samples == 20 * batches


def noisy(x: torch.Tensor) -> Leaves:
    return {"x": [x], "y": [x[:, 2] + 0.01 * torch.randn(len(x))]}


def following(x: torch.Tensor) -> Leaves:
    """All but the last are in the input, as in teacher forcing."""
    series = torch.randn(len(x), 13)
    return {"x": [series[:, :12]], "y": [series[:, 9:13]]}


def rebuilt(x: torch.Tensor) -> Leaves:
    return {"x": [x], "y": [x.clone()]}


def few_samples(x: torch.Tensor) -> Leaves:
    return {"x": [x[:8]], "y": [x[:8, 2]]}


def constant(x: torch.Tensor) -> Leaves:
    return {"x": [torch.ones_like(x)], "y": [torch.ones(len(x))]}


def rare_class(x: torch.Tensor) -> Leaves:
    """Among many words, one stands in the same few texts by chance."""
    y = (x[:, 2] > 1.5).long()
    return {"x": [torch.cat([x, y[:, None]], 1)], "y": [y]}


@pytest.mark.parametrize(
    "make", [noisy, following, rebuilt, few_samples, constant, rare_class], ids=lambda m: m.__name__
)
def test_what_is_no_copy(make: object) -> None:
    torch.manual_seed(0)
    assert callable(make)
    assert copies(make(torch.randn(64, 6))) == ()


def test_a_column_of_classes() -> None:
    torch.manual_seed(0)
    y = torch.randint(0, 3, (256,))
    x = torch.cat([torch.randn(256, 4), y[:, None].float()], 1)
    [found] = copies({"features": [x], "label": [y]})
    assert found.places == ((4,),)
    assert found.equal
