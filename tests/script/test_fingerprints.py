"""Two runs of one step, compared bit by bit, or but for rounding."""

from __future__ import annotations

import pytest
import torch

from nanodoc.script.fingerprint import Fingerprint


def made(loss: float, *gradients: torch.Tensor | None) -> Fingerprint:
    return Fingerprint([torch.tensor(loss)], list(gradients))


ONES = torch.ones(100)


@pytest.mark.parametrize(
    ("other", "same", "digits", "near"),
    [
        (made(1.0, ONES, None), True, True, True),
        (made(1.0, ONES * (1 + 1e-6), None), False, True, True),
        (made(1.0 + 1e-6, ONES, None), False, True, True),
        (made(1.0 + 3e-5, ONES, None), False, False, True),
        (made(1.0, ONES * 1.001, None), False, False, True),
        (made(1.0, ONES.half() * 1.002, None), False, True, True),
        (made(1.01, ONES, None), False, False, False),
        (made(1.0, ONES * 1.1, None), False, False, False),
        (made(1.0, ONES, ONES), False, False, False),
        (made(1.0, ONES[:50], None), False, False, False),
        (made(float("nan"), ONES, None), False, False, False),
    ],
)
def test_near_is_more_than_the_same_and_less_than_alike(
    other: Fingerprint, same: bool, digits: bool, near: bool
) -> None:
    first = made(1.0, ONES.to(other.gradients[0].dtype), None)  # type: ignore[union-attr]
    assert first.same_as(other) is same
    assert first.near(other, exact=True) is digits
    assert first.near(other, exact=False) is near


def test_a_gradient_of_nothing_but_rounding_counts_little() -> None:
    """A bias before BatchNorm has none."""
    noise = torch.randn(100, generator=torch.Generator().manual_seed(0)) * 1e-8
    assert made(1.0, ONES, noise).near(made(1.0, ONES, -noise), exact=False)


def test_what_is_not_finite_is_so_at_the_same_places() -> None:
    sick = ONES.clone()
    sick[3] = float("nan")
    elsewhere = sick.roll(1)
    assert made(float("nan"), sick).near(made(float("nan"), sick * (1 + 1e-6)), exact=False)
    assert not made(float("nan"), sick).near(made(float("nan"), elsewhere), exact=False)


def test_complex_gradients() -> None:
    values = torch.complex(ONES, ONES)
    assert made(1.0, values).near(made(1.0, values * (1 + 1e-6)), exact=False)
    assert not made(1.0, values).near(made(1.0, values.conj().resolve_conj()), exact=False)
