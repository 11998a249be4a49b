"""Random states: taken at the start of every step, so taking one must cost next to nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc import accelerator
from nanodoc.instrument.libraries import numpy_generator, python_generator
from nanodoc.instrument.torch_private import DisableTorchFunction

_MT19937_BYTES = 624 * 4 + 4  # NumPy's mt19937_state: 624 words and a position
_MARK = 5 * 4
"""Bytes that tell whether a Mersenne Twister has moved: its position, and as many of the words
beside it in memory. A draw moves the position; what makes all words anew, as every 624th draw
does and a seed, leaves two of them as they were once in 2**64 times."""
_TWISTER = "MT19937"
_NOTHING = memoryview(b"")
_TORCH_POSITION = struct.Struct("<iiI")  # as torch's mt19937 holds them: left, seeded, next


@dataclass(frozen=True, slots=True)
class RandomState:
    """Python's, NumPy's (if loaded), torch's CPU and every accelerator's random state."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    accelerators: Mapping[torch.device, torch.Tensor]
    """By device, the one that the training was asked to run on first; empty on the CPU."""

    def restore(self, device: torch.device) -> None:
        random.setstate(self.python)
        numpy = numpy_generator()
        if numpy is not None and self.numpy is not None:
            numpy.set_state(self.numpy)
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
        self._known = b""
        self._generator = python_generator()
        self._memory = _memory(id(self._generator) + self._HEAD) if self._is_as_expected() else None
        self.mark: memoryview | None = None
        """As long as these bytes are those that they were when the state was taken last, the state
        is the same; None where they do not tell."""

    def take(self) -> Any:
        """What `random.getstate()` gives."""
        if self.mark is None or self.mark != self._known:
            # a spare normal deviate, which lies elsewhere, is drawn without moving the generator
            self._state = random.getstate()
            self.mark = self._memory if self._state[2] is None else None
            self._known = bytes(self.mark) if self.mark is not None else b""
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
    """The random state of NumPy's global generator, None where NumPy is not loaded; taken as
    `PythonRandom`'s."""

    def __init__(self) -> None:
        self._state: Any = None
        self._known = b""
        self._generator: Any = None
        self._memory: memoryview | None = None
        self.mark: memoryview | None = _NOTHING
        """As `PythonRandom.mark`."""

    def take(self) -> Any:
        """What `numpy.random.get_state()` gives."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        generator = None
        with contextlib.suppress(AttributeError):  # before NumPy 1.24
            generator = numpy.random.get_bit_generator()
        if generator is None or generator is not self._generator:
            self._look_into(generator)
        if self.mark is None or self.mark != self._known:
            if generator is None or type(generator).__name__ == _TWISTER:
                self._state = numpy_generator().get_state()
            else:  # it has no tuple, and says so in a warning
                self._state = numpy_generator().get_state(legacy=False)
            # a spare deviate is as one of Python's
            spare = self._memory is None or self._state[3]
            self.mark = None if spare else self._memory
            self._known = bytes(self.mark) if self.mark is not None else b""
        return self._state

    def _look_into(self, generator: Any) -> None:
        """Where its memory lies, if it is the Mersenne Twister."""
        self._generator = generator  # held, so that its address stays good
        self.mark = self._memory = None
        if type(generator).__name__ == _TWISTER:
            # without ctypes NumPy has none of this
            with contextlib.suppress(AttributeError, ImportError):
                end = generator.ctypes.state_address + _MT19937_BYTES
                self._memory = _memory(end - _MARK)


class TorchRandom:
    """The random state of torch's generator of the CPU, taken as `PythonRandom`'s. Its memory is
    looked into where the operating system tells what lies there (Linux)."""

    _HEAD = struct.Struct("<QiiQ")  # seed, words left, whether it is seeded, the next word
    _TAIL = _HEAD.size + 624 * 8  # spare normal deviates, as `get_state` gives them

    def __init__(self) -> None:
        self._generator = torch.default_generator
        self._state = self._generator.get_state()
        self._known = b""
        self._memory = self._found(self._bytes())
        self.mark: memoryview | None = None
        """As `PythonRandom.mark`."""

    def take(self) -> torch.Tensor:
        """What `torch.get_rng_state()` gives."""
        if self._memory is None:
            return self._generator.get_state()
        if self.mark is None or self.mark != self._known:
            self._state = self._generator.get_state()
            self.mark = None if any(self._bytes()[self._TAIL :]) else self._memory
            self._known = bytes(self.mark) if self.mark is not None else b""
        return self._state

    def _bytes(self) -> bytes:
        """Those of the state; read so that no mode of the user's sees it."""
        with DisableTorchFunction():
            return ctypes.string_at(self._state.data_ptr(), self._state.nbytes)

    def _found(self, state: bytes) -> memoryview | None:
        """Where the generator's position lies, which is followed by its words."""
        _, left, _, following = self._HEAD.unpack_from(state)
        words = struct.pack("<624I", *struct.unpack_from("<624Q", state, self._HEAD.size))
        with contextlib.suppress(OSError, ValueError):
            owner = ctypes.c_void_p.from_address(id(self._generator) + object.__basicsize__).value
            memory = _readable(owner or 0, 4096)
            at = memory.index(words) - _TORCH_POSITION.size
            if at >= 0 and _TORCH_POSITION.unpack_from(memory, at)[::2] == (left, following):
                return _memory((owner or 0) + at)
        return None


class RandomKeeper:
    """Takes `RandomState`s; what is slow to read only when it has moved."""

    def __init__(self, device: torch.device) -> None:
        self._devices = _devices(device)
        self._python, self._numpy, self._torch = PythonRandom(), NumpyRandom(), TorchRandom()
        self._state: RandomState | None = None
        self._marks: tuple[memoryview, ...] = ()
        self._known = b""

    def take(self) -> RandomState:
        """The state of now."""
        self._state = RandomState(
            self._python.take(),
            self._numpy.take(),
            self._torch.take(),
            accelerator.random_states(self._devices) if self._devices else {},
        )
        marks = (self._python.mark, self._numpy.mark, self._torch.mark)
        told = () if self._devices else tuple(mark for mark in marks if mark is not None)
        self._marks = told if len(told) == len(marks) else ()
        self._known = b"".join(self._marks)
        return self._state

    def again(self) -> RandomState:
        """The state of now, for a step that has to cost little: that NumPy was given another
        generator since the last `take` is not seen."""
        if self._marks and self._state is not None and b"".join(self._marks) == self._known:
            return self._state
        return self.take()


def _memory(address: int) -> memoryview:
    """The bytes of a mark; nothing is read yet. Whoever has it keeps what lies there alive."""
    return memoryview((ctypes.c_char * _MARK).from_address(address)).cast("B")


def _readable(address: int, size: int) -> bytes:
    """As many of these bytes as there are, read by the operating system. Raises `OSError` where
    none is."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        return os.pread(memory, size, address)
    finally:
        os.close(memory)


def _devices(device: torch.device) -> tuple[torch.device, ...]:
    """The devices that a training on `device` may draw random numbers on, `device` first. Of
    several ranks each has its own device only."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    others = () if distributed else accelerator.every_device(device.type)
    return (device, *(other for other in others if other != device)) if device.type != "cpu" else ()
