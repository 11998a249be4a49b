"""Random states: taken at the start of every step, so taking one must cost next to nothing."""

from __future__ import annotations

import contextlib
import ctypes
import random
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc import accelerator

_MT19937_BYTES = 624 * 4 + 4  # NumPy's mt19937_state: 624 words and a position
_MARK = 5 * 4
"""Bytes that tell whether a Mersenne Twister has moved: its position, and the four words beside it
in memory. A draw moves the position; what makes all words anew, as every 624th draw does and a
seed, leaves four of them as they were once in 2**128 times."""


@dataclass(slots=True)
class RandomState:
    """Python's, NumPy's (if loaded), torch's CPU and every accelerator's random state."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    accelerators: Mapping[torch.device, torch.Tensor]
    """By device, the one that the training was asked to run on first; empty on the CPU."""

    def restore(self, device: torch.device) -> None:
        random.setstate(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None:
            numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        own = next(iter(self.accelerators), None)
        for taken_on, state in self.accelerators.items():
            # a snapshot of cuda:1 can be replayed on cuda:0: the two change places
            swapped = (
                {own: device, device: own}.get(taken_on)
                if own is not None and own.type == device.type
                else None
            )
            accelerator.set_random_state(swapped or taken_on, state)


class PythonRandom:
    """Python's own random state. `getstate` makes a tuple of 625 numbers; it is asked again only
    when the generator has moved."""

    _HEAD = object.__basicsize__  # of every object
    _BYTES = 4 + 624 * 4  # index and words, as CPython's RandomObject holds them

    def __init__(self) -> None:
        self._state: Any = None
        self._mark = b""
        self._generator = getattr(random, "_inst", None)
        self._readable = self._is_as_expected()
        self._memory = _memory(id(self._generator) + self._HEAD, _MARK)

    def take(self) -> Any:
        """What `random.getstate()` gives."""
        if not self._readable:
            return random.getstate()
        now = self._memory.raw
        # the spare normal deviate lies elsewhere
        spare = getattr(self._generator, "gauss_next", None)
        if self._state is None or now != self._mark or spare != self._state[2]:
            self._state, self._mark = random.getstate(), now
        return self._state

    def _is_as_expected(self) -> bool:
        """The memory behind the object is what `getstate` says: another Python may lay it out in
        another way."""
        generator = self._generator
        if type(generator) is not random.Random or sys.implementation.name != "cpython":
            return False
        if sys.getsizeof(generator) < self._HEAD + self._BYTES:
            return False
        *words, index = generator.getstate()[1]
        memory = ctypes.string_at(id(generator) + self._HEAD, self._BYTES)
        return struct.unpack("=i624I", memory) == (index, *words)


class NumpyRandom:
    """The random state of NumPy's global generator, None where NumPy is not loaded. `get_state`
    copies it; it is asked again only when the generator has moved."""

    def __init__(self) -> None:
        self._state: Any = None
        self._mark: bytes | None = None
        self._generator: Any = None
        self._memory: ctypes.Array[ctypes.c_char] | None = None

    def take(self) -> Any:
        """What `numpy.random.get_state()` gives."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        try:
            generator = numpy.random.get_bit_generator()
        except AttributeError:  # before NumPy 1.24
            return numpy.random.get_state()
        if generator is not self._generator:
            self._look_into(generator)
        now = self._memory.raw if self._memory is not None else None
        state = self._state
        # A normal deviate can be drawn from the spare one without moving the generator; only with
        # no spare (state[3] is 0) do equal marks mean an equal state.
        if state is None or now is None or now != self._mark or state[3]:
            state = self._state = numpy.random.get_state()
            self._mark = now
        return state

    def _look_into(self, generator: Any) -> None:
        """Where its memory lies, if it is the Mersenne Twister."""
        self._generator = generator  # held, so that its address stays good
        self._state = self._memory = None
        if type(generator).__name__ == "MT19937":
            # without ctypes NumPy has none of this
            with contextlib.suppress(AttributeError, ImportError):
                end = generator.ctypes.state_address + _MT19937_BYTES
                self._memory = _memory(end - _MARK, _MARK)


class RandomKeeper:
    """Takes `RandomState`s; Python's and NumPy's, slow to read, only when they have moved."""

    def __init__(self, device: torch.device) -> None:
        self._devices = _devices(device)
        self._python = PythonRandom()
        self._numpy = NumpyRandom()

    def take(self) -> RandomState:
        return RandomState(
            self._python.take(),
            self._numpy.take(),
            torch.default_generator.get_state(),
            accelerator.random_states(self._devices) if self._devices else {},
        )


def _memory(address: int, size: int) -> ctypes.Array[ctypes.c_char]:
    """These bytes; nothing is read yet. Whoever has it keeps what lies there alive."""
    return (ctypes.c_char * size).from_address(address)


def _devices(device: torch.device) -> tuple[torch.device, ...]:
    """The devices that a training on `device` may draw random numbers on, `device` first. Of
    several ranks each has its own device only."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    others = () if distributed else accelerator.every_device(device.type)
    return (device, *(other for other in others if other != device)) if device.type != "cpu" else ()
