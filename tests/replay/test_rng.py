"""Random states that are read only where a generator has moved are those that it has."""

import random
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from nanodoc.replay.rng import NumpyRandom, PythonRandom, RandomKeeper, TorchRandom

DRAWS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "random": random.random,
    "gauss, whose second value is spare": lambda: random.gauss(0, 1),
    "all words once, the position where it was": lambda: [random.random() for _ in range(312)],
    "seed": lambda: random.seed(3),
    "shuffle": lambda: random.shuffle([1, 2, 3]),
    "numpy": np.random.rand,
    "numpy, all words once": lambda: np.random.rand(312),
    "numpy normal, whose second value is spare": lambda: np.random.standard_normal(),
    "numpy seed": lambda: np.random.seed(3),
    "numpy state": lambda: np.random.set_state(np.random.RandomState(5).get_state()),
    "torch": lambda: torch.rand(1),
    "torch, all words once": lambda: torch.rand(624),
    "torch normal, whose second value is spare": lambda: torch.randn(3),
    "torch seed": lambda: torch.manual_seed(3),
}


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    python, numpy, own = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(own)


def same(one: object, other: object) -> bool:
    return repr(one) == repr(other)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(DRAWS)), max_size=12))
def test_what_is_kept_is_the_state_whatever_was_drawn(names: list[str]) -> None:
    with np.printoptions(threshold=sys.maxsize):
        keeper = RandomKeeper(torch.device("cpu"))
        for name in ["nothing", *names, "nothing"]:
            DRAWS[name]()
            taken = keeper.again()
            assert taken.python == random.getstate(), name
            assert same(taken.numpy, np.random.get_state()), name
            assert torch.equal(taken.cpu, torch.get_rng_state()), name


def test_a_state_that_has_not_moved_is_not_read_again() -> None:
    for name in ("seed", "numpy seed", "torch seed"):  # nor is a normal deviate to spare
        DRAWS[name]()
    for source in (PythonRandom(), NumpyRandom(), TorchRandom()):
        assert source.take() is source.take()
    keeper = RandomKeeper(torch.device("cpu"))
    assert keeper.take() is keeper.again()


def test_reading_a_state_is_no_op_that_a_mode_would_see() -> None:
    class Raising(TorchDispatchMode):
        def __torch_dispatch__(self, op: object, *_: object, **__: object) -> object:
            raise AssertionError(op)

    class Refusing(TorchFunctionMode):
        def __torch_function__(self, function: object, *_: object, **__: object) -> object:
            raise AssertionError(function)

    with Refusing(), Raising():
        TorchRandom().take()


def test_a_generator_that_is_no_twister_is_read_each_time() -> None:
    numpy, before = NumpyRandom(), np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        first = numpy.take()
        drawn = np.random.rand()
        assert numpy.take() != first
        np.random.set_state(first)
        assert np.random.rand() == drawn
    finally:
        np.random.set_bit_generator(before)


def test_another_generator_of_numpy_is_read_from_itself() -> None:
    numpy = NumpyRandom()
    numpy.take()
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.MT19937(7))
        with np.printoptions(threshold=sys.maxsize):
            assert same(numpy.take(), np.random.get_state())
    finally:
        np.random.set_bit_generator(before)
