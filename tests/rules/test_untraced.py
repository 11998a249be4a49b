"""How two runs of one script are compared."""

from __future__ import annotations

import math

import pytest

from nanodoc.facts.untraced import Untraced, rounding_on, sending_one

LOSSES = (1.0, math.nan, -math.inf, 0.0, 2.0)


def untraced(device: str, losses: tuple[float, ...] = LOSSES) -> Untraced:
    return Untraced(
        training=0, step=len(losses), steps=9, losses=losses, rounding=rounding_on(device)
    )


@pytest.mark.parametrize(
    ("device", "at", "loss", "parted"),
    [
        ("cpu", 4, 2.0, None),
        ("cpu", 4, 2.00001, None),
        ("cpu", 4, 2.0001, 4),
        ("cuda", 4, 2.01, None),
        ("cuda", 4, 2.1, 4),
        ("cpu", 3, 1e-12, 3),
        ("cpu", 1, 1.0, 1),
        ("cpu", 2, math.inf, 2),
        ("cpu", 0, math.nan, 0),
    ],
)
def test_the_first_loss_that_is_another(
    device: str, at: int, loss: float, parted: int | None
) -> None:
    losses = [*LOSSES[:at], loss, *LOSSES[at + 1 :]]
    assert untraced(device).parted_at(losses) == parted
    assert untraced(device).parted_at(losses, at) == parted
    assert untraced(device).parted_at(losses[:at]) is None


def test_a_first_step_has_none_before_it() -> None:
    assert untraced("cpu").known
    assert not untraced("cpu", ()).known


def test_clients_of_native_code() -> None:
    assert sending_one(["torch", "zmq.backend", "zmq"]) == "zmq"
    assert sending_one(["torch", "zmqx", "mysqlx"]) == ""
