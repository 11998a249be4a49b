"""`nanodoc.probe`: a user's own spot in the code, in the same table as the modules. Importing it
does not import torch."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Protocol, TypeVar

from nanodoc.instrument.frames import look_through

look_through(__file__)

_T = TypeVar("_T")


class Recorder(Protocol):
    """What a run puts in place to hear of probes."""

    def __call__(self, tensor: Any, label: str) -> None: ...


class _Active:
    recorder: Recorder | None = None


def probe(tensor: _T, label: str) -> _T:
    """Returns `tensor` as it is. While nanodoc runs the training, its range is recorded under
    `label`, and a non-finite element becomes a finding; without a run it costs one comparison.

    Takes a tensor of any shape and dtype. Inside code compiled by torch.compile nothing is
    recorded. Raises nothing.
    """
    if _Active.recorder is not None and not _compiling():
        # whatever is odd about the tensor, the training must not feel it
        with contextlib.suppress(Exception):
            _Active.recorder(tensor, label)
    return tensor


def _compiling() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.compiler.is_compiling())


def listen(recorder: Recorder | None) -> Recorder | None:
    """Puts `recorder` in place and returns the one before it."""
    before, _Active.recorder = _Active.recorder, recorder
    return before
