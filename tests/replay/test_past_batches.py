"""How many batches of the last steps fit into memory, and which go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

from nanodoc.replay.past_batches import MOST_STEPS, PastBatches
from nanodoc.replay.past_step import KnownMemory, PastStep

ROWS = 1000  # of 4 float32
BYTES = ROWS * 4 * 4
STATE: Any = None  # of the random generators, which nobody asks for here


def batches(fitting: float = 10) -> PastBatches:
    """With room for so many batches of ROWS rows."""
    return PastBatches(lambda: fitting * BYTES)


def begun(past: PastBatches, values: Iterable[Any], drawn: Any = None) -> None:
    """A step begins with each of `values`."""
    for value in values:
        number = past.steps[-1].step + 1 if past.steps else 0
        step = PastStep(number, [value], [], STATE, [], drawn=drawn)
        past.add(step, KnownMemory())


def fresh(count: int) -> list[torch.Tensor]:
    return [torch.zeros(ROWS, 4) for _ in range(count)]


def test_so_many_as_the_limit_allows() -> None:
    past = batches(fitting=10)
    begun(past, fresh(3))
    assert past.fitting() == 10
    begun(past, fresh(20))
    assert [step.step for step in past.steps] == list(range(13, 23))
    assert past.fitting() == 10


def test_a_batch_that_is_drawn_while_the_step_before_it_is_open_counts_once() -> None:
    """As a script's loop over a DataLoader draws it."""
    past = batches(fitting=10)
    following = torch.zeros(ROWS, 4)
    for _ in range(30):
        batch, following = following, torch.zeros(ROWS, 4)
        begun(past, [batch], drawn=[(False, following, STATE)])
    assert past.fitting() == 10
    assert len(past.steps) == 10
    past.clear()
    assert past.host_bytes == 0


def test_views_of_a_data_set_that_fits() -> None:
    past = batches(fitting=10)
    begun(past, torch.zeros(9 * ROWS, 4).split(ROWS // 10))
    assert past.fitting() == MOST_STEPS
    assert len(past.steps) == 90


def test_views_of_a_data_set_that_is_larger_than_the_limit() -> None:
    past = batches(fitting=10)
    begun(past, torch.zeros(11 * ROWS, 4).split(ROWS // 10))
    assert past.fitting() == len(past.steps) == 2


def test_a_few_batches_again_and_again() -> None:
    past, few = batches(fitting=10), fresh(4)
    begun(past, few * 10)
    assert past.fitting() == MOST_STEPS
    assert len(past.steps) == 40


def test_what_no_one_can_weigh() -> None:
    past = batches()
    begun(past, [object() for _ in range(5)])
    assert past.fitting() == len(past.steps) == 2


def test_tensors_of_workers_count_by_their_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanodoc.replay.past_batches._MOST_SHARED", 12)
    past = batches(fitting=1000)
    shared = [(torch.zeros(3).share_memory_(), torch.zeros(3).share_memory_()) for _ in range(9)]
    begun(past, shared)
    assert past.fitting() == len(past.steps) == 6


def test_room_is_made_for_those_that_follow() -> None:
    past = batches(fitting=10)
    begun(past, fresh(10))
    past.make_room(6)
    assert [step.step for step in past.steps] == [6, 7, 8, 9]
    begun(past, fresh(6))
    assert len(past.steps) == 10


def test_no_room_is_made_where_memory_is_not_scarce() -> None:
    past = batches(fitting=10_000)
    begun(past, [torch.zeros(4) for _ in range(MOST_STEPS)])
    past.make_room(32)
    assert len(past.steps) == MOST_STEPS


def test_the_last_one_was_none() -> None:
    past = batches()
    begun(past, fresh(3))
    past.drop_last(7)
    assert len(past.steps) == 3
    past.drop_last(2)
    assert (len(past.steps), past.host_bytes) == (2, 2 * BYTES)
