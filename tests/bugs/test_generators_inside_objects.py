"""A replay-buffer script drew one action too many from the generator inside its environment's action
space: the first step was run again, and only generators that the step's own variables hold, or that
few objects lie around, were put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import ShuffleSplit

from nanodoc.replay.objects import PlainState
from nanodoc.replay.whole_state import WholeState

SOURCES = {
    "NumPy's generator": (np.random.default_rng(0), lambda source: source.integers(9)),
    "NumPy's old one": (np.random.RandomState(0), lambda source: source.rand()),
    "Python's": (random.Random(0), lambda source: source.random()),
    "torch's": (torch.Generator(), lambda source: torch.rand(1, generator=source).item()),
}


@pytest.mark.parametrize("state", [PlainState, WholeState])
@pytest.mark.parametrize("kind", SOURCES)
def test_it_is_put_back(kind: str, state: Any) -> None:
    source, draw = SOURCES[kind]
    kept = state([{"split": ShuffleSplit(1, random_state=source)}])
    first = [draw(source) for _ in range(3)]
    kept.restore()
    assert [draw(source) for _ in range(3)] == first
