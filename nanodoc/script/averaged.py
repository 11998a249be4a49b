"""Averages of the weights that a library keeps (torch_ema, diffusers): whether what they copy into
the model is taken out again before the training goes on.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.facts.asides import AveragedFacts
from nanodoc.instrument.libraries import AVERAGES
from nanodoc.instrument.taps import at
from nanodoc.trace.spans import Place, calling_places, resolved


class AveragedWeights:
    """Told of every backward of the script, and of weights that it loads. `trained` gives the
    model, which is not held."""

    def __init__(
        self, quiet: Callable[[], bool], trained: Callable[[], torch.nn.Module | None]
    ) -> None:
        self._quiet = quiet
        self._trained = trained
        self._looked = False
        self.waits = True
        """What is done when the script trains is still to be done."""
        self._copied: Place | None = None
        self._first: Place | None = None
        self._kind = ""
        self._times = 0
        self._undo: list[Callable[[], None]] = []

    @property
    def facts(self) -> AveragedFacts | None:
        if not self._times:
            return None
        return AveragedFacts(kind=self._kind, times=self._times, copied_at=resolved(self._first))

    def trains(self) -> None:
        """A loss of the script is about to be differentiated."""
        if not self._looked and self._trained() is not None:
            self._looked = True
            self._install()
        if self._copied is not None and not self._quiet():
            self._first = self._first or self._copied
            self._times += 1
            self._copied = None
        self.waits = not self._looked or self._copied is not None

    def put_back(self) -> None:
        """The model has been given other weights."""
        self._copied = None

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _install(self) -> None:
        """Wraps what the libraries have, as far as the script has imported them."""
        for name, kind in AVERAGES.items():
            owner = getattr(sys.modules.get(name), kind, None)
            if owner is not None:
                self._undo += [
                    at(owner, method).listen(listener)
                    for method, listener in (
                        ("copy_to", self._copying),
                        ("restore", self._restoring),
                    )
                    if method in vars(owner)
                ]

    def _copying(self, original: Any) -> Any:
        def copy_to(average: Any, *args: Any, **kwargs: Any) -> Any:
            model = self._trained()
            first = next(model.parameters(), None) if model is not None else None
            before = first.detach().clone() if first is not None else None
            out = original(average, *args, **kwargs)
            if before is not None and first is not None and not torch.equal(before, first):
                own, caller = calling_places(2)
                self._copied, self._kind = caller or own, type(average).__name__
                self.waits = True
            return out

        return copy_to

    def _restoring(self, original: Any) -> Any:
        def restore(average: Any, *args: Any, **kwargs: Any) -> Any:
            self.put_back()
            return original(average, *args, **kwargs)

        return restore
