"""Random states: taken at the start of every step, so taking one must cost next to nothing."""

from __future__ import annotations

import ctypes
import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

_MT19937_BYTES = 624 * 4 + 4  # NumPy's mt19937_state: 624 words and a position


@dataclass(frozen=True, slots=True)
class RandomState:
    """Python's, NumPy's (if loaded), torch's CPU and the selected device's random state."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    device: torch.Tensor | None

    def restore(self, device: torch.device) -> None:
        random.setstate(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None:
            numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.device is not None and device.type == "cuda":
            torch.cuda.set_rng_state(self.device, device)


class RandomKeeper:
    """Takes `RandomState`s. NumPy's, slow to read, is read again only when its generator has moved."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._numpy_state: Any = None
        self._numpy_bytes = b""
        self._generator: Any = None
        self._address: int | None = None

    def take(self) -> RandomState:
        return RandomState(
            random.getstate(),
            self._numpy(),
            torch.get_rng_state(),
            torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None,
        )

    def _numpy(self) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        now = self._generator_bytes(numpy)
        state = self._numpy_state
        # A normal deviate can be drawn from the spare one without moving the generator; only with no spare (state[3]
        # is 0) do equal bytes mean an equal state.
        if state is None or now is None or now != self._numpy_bytes or state[3]:
            state = self._numpy_state = numpy.random.get_state()
            self._numpy_bytes = now or b""
        return state

    def _generator_bytes(self, numpy: Any) -> bytes | None:
        """The raw memory of NumPy's global generator, None if it isn't the Mersenne Twister."""
        try:
            generator = numpy.random.get_bit_generator()
            if generator is not self._generator:  # held, so that its address stays good
                self._generator = generator
                self._address = generator.ctypes.state_address if type(generator).__name__ == "MT19937" else None
            return ctypes.string_at(self._address, _MT19937_BYTES) if self._address else None
        except (AttributeError, ImportError):
            return None
