"""The first call of a step whose result for one position of a sequence depends on a later token."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.examination.sequence_look import Lookup, lookups_of, positions_of
from nanodoc.facts.inspection import MixingFacts
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import current_autograd_node
from nanodoc.trace.calls import plain_name
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import ATTENTION, BINARY, CLASSIFICATION, MATRIX_PRODUCTS, RESHAPING

_OF_TOKENS = (*CLASSIFICATION, BINARY, "gather")
_MOST_CALLS = 400
_SECONDS = 5.0
_LEAKS = 1e-4
"""Times the largest gradient."""


class LeakingOp(TorchFunctionMode):
    """A context manager around a step that is run again, whose scores are known to depend on later
    tokens of its lookup number `read`; `found` then is the call in which that begins."""

    def __init__(self, read: int) -> None:
        super().__init__()
        self._read = read
        self._lookups: list[Lookup] = []
        self._made: list[tuple[torch.Tensor, str, Place | None]] = []
        self._over = False
        self.found: MixingFacts | None = None

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        self._lookups, self._made = [], []

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = call(func, *args, **kwargs)
        if not torch.is_grad_enabled() or current_autograd_node() is not None:
            return out
        name = plain_name(func)
        if self._over:
            return out
        if name == "embedding":
            self._lookups += lookups_of(args, kwargs, out)
        elif name in _OF_TOKENS:
            self._over = True
            with torch.enable_grad():
                self._find()
            self._made = []
        elif self._lookups and len(self._made) < _MOST_CALLS:
            first = out[0] if isinstance(out, tuple) and out else out
            if isinstance(first, torch.Tensor) and first.requires_grad:
                own, caller = calling_places(2)
                self._made.append((first, name, caller or own))
        return out

    def _find(self) -> None:
        if self._read >= len(self._lookups):
            return
        lookup, until = self._lookups[self._read], time.monotonic() + _SECONDS
        clean: set[Place | None] = set()
        strangers = False  # something legitimate, such as a batch norm, mixes the sequences
        for tensor, name, place in self._made:
            if time.monotonic() > until:
                return
            dims = _dims(tensor, lookup)
            if dims is None:
                continue
            later, others = _reads(tensor, dims, lookup)
            moved = name in RESHAPING and not strangers
            if later or (others and moved):
                lines = frozenset(resolved(one) for one in clean)
                self.found = MixingFacts(name=name, at=resolved(place), clean=lines)
                return
            if name in (*ATTENTION, *MATRIX_PRODUCTS):
                clean.add(place)
            strangers = strangers or others


def _dims(tensor: torch.Tensor, lookup: Lookup) -> tuple[int, int] | None:
    """(dimension of the sequences, of the positions), as far as their sizes tell."""
    count, length = lookup.ids.shape
    positions = [d for d, size in enumerate(tensor.shape) if size == length]
    sequences = [d for d, size in enumerate(tensor.shape) if size == count]
    if count == length or len(positions) != 1 or not sequences:
        return None
    # of several, the sequences come first, or second behind the positions
    likely = 1 if positions[0] == 0 else 0
    if len(sequences) > 1 and likely not in sequences:
        return None
    return (likely if likely in sequences else sequences[0]), positions[0]


def _reads(tensor: torch.Tensor, dims: tuple[int, int], lookup: Lookup) -> tuple[bool, bool]:
    """Whether a few positions depend on a later token of their sequence, and on another
    sequence."""
    count, length = lookup.ids.shape
    later, others = False, False
    for sequence, position in positions_of(count, length):
        part = tensor.narrow(dims[0], sequence, 1).narrow(dims[1], position, 1).flatten()
        weights = torch.linspace(-1.0, 1.5, part.numel(), device=part.device, dtype=part.dtype)
        try:
            (gradient,) = torch.autograd.grad(
                (part * weights).sum(), lookup.embedded, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # a graph that cannot be walked twice
            return False, False
        if gradient is None:
            return False, False
        sizes = lookup.rows(gradient)
        least = _LEAKS * sizes.max()
        later = later or bool((sizes[sequence, position + 1 :] > least).any())
        sizes[sequence] = 0.0
        others = others or bool((sizes > least).any())
    return later, others
