"""Functions of a schedule: which of them may be asked once more."""

from __future__ import annotations

import math
import random
from random import random as drawn
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nanodoc.trace.reckoning import only_reckons

COUNTED: list[int] = []
RATES = [0.1, 0.2]
SETTINGS = SimpleNamespace(lr=0.1, steps=10)
NUMBERS = iter([0.1, 0.2])


class Schedule:
    def get(self, step: int) -> float:
        COUNTED.append(step)
        return 0.1


SCHEDULE = Schedule()


def cosine(step: int) -> float:
    progress = step / max(1, SETTINGS.steps)
    return SETTINGS.lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def of_numpy(step: int) -> float:
    return float(np.interp(step, [0, 10], RATES))


def through_another(step: int) -> float:
    return 2 * cosine(step)


def counting(step: int) -> float:
    COUNTED.append(step)
    return 0.1


def counting_elsewhere(step: int) -> float:
    return SCHEDULE.get(step)


def through_a_counting_one(step: int) -> float:
    return counting(step)


def printing(step: int) -> float:
    print(step)
    return 0.1


def writing(step: int) -> float:
    SETTINGS.steps = step
    return 0.1


def drawing(step: int) -> float:
    return random.random()


def drawing_by_name(step: int) -> float:
    return drawn()


def drawing_by_torch(step: int) -> float:
    return float(torch.rand(()))


def drawing_by_numpy(step: int) -> float:
    return float(np.random.rand())


def taking(step: int) -> float:
    return next(NUMBERS)


def importing(step: int) -> float:
    import this

    return len(this.s)


@pytest.mark.parametrize("function", [cosine, of_numpy, through_another, lambda n: n / 5])
def test_arithmetic(function: Any) -> None:
    assert only_reckons(function)


@pytest.mark.parametrize(
    "function",
    [
        counting,
        counting_elsewhere,
        through_a_counting_one,
        printing,
        writing,
        drawing,
        drawing_by_name,
        drawing_by_torch,
        drawing_by_numpy,
        taking,
        importing,
        SCHEDULE.get,
        math.cos,
        Schedule,
    ],
)
def test_what_leaves_a_trace(function: Any) -> None:
    assert not only_reckons(function)


def test_what_it_closes_over() -> None:
    def made(rate: Any) -> Any:
        return lambda step: rate * step

    def asking(other: Any) -> Any:
        return lambda step: other(step)

    assert only_reckons(made(0.1))
    assert only_reckons(asking(cosine))
    assert not only_reckons(asking(counting))
    assert not only_reckons(asking(SCHEDULE.get))


def test_what_it_reads_of_a_model() -> None:
    model = torch.nn.Linear(3, 2)

    assert only_reckons(lambda step: model.in_features**-0.5 * step)
    assert not only_reckons(lambda step: model(step))
    assert not only_reckons(lambda step: model.forward(step))
