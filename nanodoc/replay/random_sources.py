"""Objects that keep their state outside of Python's attributes: sources of random numbers, and
numbers in memory that processes share. Their states, and putting them back."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import random
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.replay.plain_values import like, plain

Restore = Callable[[], None]
_MODULES = ("numpy.random", "multiprocessing.sharedctypes")


def copy_of_source(value: Any) -> Callable[[Any], Restore] | None:
    """What keeps the state of a source of random numbers, torch's, Python's or NumPy's, or of a
    number that no other process counts with by now; None for anything else."""
    if isinstance(value, torch.Generator):
        return _torch_generator
    if isinstance(value, random.Random):
        return _python_generator
    module = type(value).__module__
    if not isinstance(module, str) or not module.startswith(_MODULES):
        return None
    kind = f"{module}.{type(value).__qualname__}"
    if kind == "multiprocessing.sharedctypes.Synchronized":
        return _shared_number if _is_alone() else None
    return {
        "numpy.random._generator.Generator": _numpy_generator,
        "numpy.random.mtrand.RandomState": _numpy_state,
    }.get(kind)


def _is_alone() -> bool:
    """No other process was made of this one, or made this one, that may share its memory."""
    # active_children() would reap those that have ended
    children = getattr(multiprocessing.process, "_children", None)
    return children is not None and not children and multiprocessing.parent_process() is None


def seed_source(value: Any, seed: int) -> None:
    """Begins a source of random numbers anew; anything else is left alone."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.Generator):
        value.manual_seed(seed)
    elif isinstance(value, random.Random) or kind == "numpy.random.mtrand.RandomState":
        value.seed(seed)
    elif kind == "numpy.random._generator.Generator":
        value.bit_generator.state = type(value.bit_generator)(seed).state


def state_of_source(value: Any) -> Any:
    """The state of a source of random numbers as a snapshot's plain value; None for anything
    else."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return plain(value.getstate())
    if str(type(value).__module__).startswith("numpy.random"):
        if hasattr(value, "bit_generator"):
            return plain(value.bit_generator.state, arrays=True)
        if hasattr(value, "get_state"):
            return plain(value.get_state(legacy=False), arrays=True)
    return None


def set_state_of_source(value: Any, state: Any) -> None:
    """Puts back what `state_of_source` gave. Raises what the source does for a state that is not
    its own."""
    if isinstance(value, torch.Generator):
        value.set_state(state)
    elif isinstance(value, random.Random):
        version, words, spare = state
        value.setstate((version, tuple(words), spare))
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = like(state, value.bit_generator.state)
    else:
        value.set_state(like(state, value.get_state(legacy=False)))


def _torch_generator(value: torch.Generator) -> Restore:
    before = value.get_state()

    def restore() -> None:
        value.set_state(before)

    return restore


def _python_generator(value: random.Random) -> Restore:
    before = value.getstate()
    return lambda: value.setstate(before)


def _numpy_generator(value: Any) -> Restore:
    before = value.bit_generator.state
    return lambda: setattr(value.bit_generator, "state", before)


def _numpy_state(value: Any) -> Restore:
    before = value.get_state()
    return lambda: value.set_state(before)


def _shared_number(value: Any) -> Restore:
    before = value.value
    return lambda: setattr(value, "value", before)
