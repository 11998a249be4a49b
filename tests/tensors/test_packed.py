"""Copies of thousands of small tensors, in few pieces: they are what they were taken of."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanodoc.measure.gradients import nonfinite_tensors
from nanodoc.replay.optimizers import copied, copy_optimizer, restore_optimizer
from nanodoc.tensors import packed
from nanodoc.tensors.packed import PackedCopies, in_pieces

SHAPES = ((), (0,), (1,), (3, 2), (2, 3, 4), (1, 1), (200, 200))
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool)


def made(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> Any:
    tensor = torch.randn(shape).mul(9).to(dtype)
    if kind == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, 1)
    if kind == "parameter" and dtype.is_floating_point:
        return nn.Parameter(tensor)
    if kind == "sparse" and tensor.dim() > 1:
        return tensor.to_sparse()
    if kind == "in a list":
        return [tensor, 3]
    return tensor


VALUES = st.builds(
    made,
    st.sampled_from(SHAPES),
    st.sampled_from(DTYPES),
    st.sampled_from(("dense", "transposed", "parameter", "sparse", "in a list")),
) | st.sampled_from((None, 3, 0.5, "text"))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return all(map(same, one, other))
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.is_sparse:
        one, other = one.to_dense(), other.to_dense()
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)


def spoil(value: Any) -> None:
    if isinstance(value, list):
        spoil(value[0])
    elif isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.zero_()


@settings(deadline=None)
@given(st.lists(VALUES, max_size=12), st.booleans())
def test_copies_are_what_they_were_taken_of(values: list[Any], host: bool) -> None:
    expected = [copied(value) for value in values]
    kept = PackedCopies(values, copied, host=host)
    for value in values:
        spoil(value)
    assert len(kept) == len(values)
    for _ in range(2):  # they can be read again
        assert all(map(same, kept, expected))


def test_a_piece_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device so much memory is taken besides what there is."""
    monkeypatch.setattr(packed, "_PIECE", 100)
    tensors = [torch.full((40,), float(number)) for number in range(7)]
    pieces, others = in_pieces(tensors)
    sizes = [piece.values.numel() for piece in pieces]
    assert sizes == [80, 80, 80, 40]
    assert others == []
    assert all(map(torch.equal, PackedCopies(tensors, copied, host=False), tensors))


def test_a_user_of_pieces_keeps_its_own_grad_mode() -> None:
    pieces, _ = in_pieces([torch.ones(3, requires_grad=True), torch.ones(2)])
    next(pieces)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("within", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_autocast_is_no_hindrance(dtype: torch.dtype, within: torch.dtype) -> None:
    """It refuses to join tensors of another half precision."""
    tensors = [torch.ones(3, dtype=dtype), torch.ones(2, 2, dtype=dtype)]
    with torch.autocast("cpu", dtype=within):
        kept = list(PackedCopies(tensors, copied, host=False))
        assert nonfinite_tensors([("a", tensors[0]), ("b", tensors[1])]) == []
        assert torch.is_autocast_enabled("cpu")
    assert [one.dtype for one in kept] == [dtype, dtype]


def test_strides_stay_even_where_they_do_not_count() -> None:
    """Those of a dimension of one element: a training may save what an optimizer was given back."""
    weight = torch.randn(16, 16, 1, 1).to(memory_format=torch.channels_last)
    turned = torch.randn(9, 1).t()
    kept = list(PackedCopies([weight, turned, torch.ones(3)], copied, host=False))
    assert [one.stride() for one in kept[:2]] == [weight.stride(), turned.stride()]
    assert torch.equal(kept[0], weight)
    assert torch.equal(kept[1], turned)
    assert copied(kept[0]).stride() == weight.stride()


def test_a_state_that_is_differentiated_keeps_its_graph() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    (kept,) = PackedCopies([x * 3], copied, host=False)
    (gradient,) = torch.autograd.grad(kept, x)
    assert gradient == 3


def test_nested_tensors_are_copied_by_themselves() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch: their API is a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    (kept,) = PackedCopies([nested], copied, host=False)
    assert all(map(torch.equal, kept.unbind(), nested.unbind()))


def test_a_look_at_all_weights_takes_no_copy_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    most = 0
    joined = packed._joined

    def counted(values: Sequence[torch.Tensor], places: list[int]) -> torch.Tensor:
        nonlocal most
        piece = joined(values, places)
        alive.add(piece)
        most = max(most, len(alive))
        return piece

    monkeypatch.setattr(packed, "_joined", counted)
    monkeypatch.setattr(packed, "_PIECE", 1000)
    assert nonfinite_tensors([(f"w{number}", torch.randn(100)) for number in range(200)]) == []
    assert 0 < most <= 2


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "L-BFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_as_from_there(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = OPTIMIZERS[name](model.parameters())
    x, y = torch.randn(16, 4), torch.randn(16, 1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    def steps() -> list[torch.Tensor]:
        for _ in range(3):
            optimizer.step(closure)
        return [parameter.detach().clone() for parameter in model.parameters()]

    began = steps()
    kept = copy_optimizer(optimizer, host=True)
    came_to = steps()
    for parameter, value in zip(model.parameters(), began, strict=True):
        parameter.data.copy_(value)
    restore_optimizer(optimizer, kept)
    assert all(map(torch.equal, steps(), came_to))


def test_one_bad_value_among_thousands_is_named() -> None:
    named = [(f"w{number}", torch.randn(5, 3)) for number in range(3000)]
    named += [("large", torch.randn(300, 300)), ("half", torch.ones(4, dtype=torch.float16))]
    named += [("counter", torch.tensor(3)), ("turned", torch.randn(40, 30).T)]
    assert nonfinite_tensors(named) == []
    for name, at in (("w1234", (4, 2)), ("half", (3,)), ("turned", (0, 39))):
        tensor = dict(named)[name]
        before = tensor[at].item()
        tensor[at] = torch.nan
        assert nonfinite_tensors(named) == [name]
        tensor[at] = before


def test_large_values_are_finite() -> None:
    """Their sum is not."""
    named = [(f"w{number}", torch.full((4,), 3e38)) for number in range(9)]
    assert nonfinite_tensors(named) == []
