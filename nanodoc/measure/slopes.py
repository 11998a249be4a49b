"""Which way a training moves the loss functions of its step, and all single numbers that it
computes: the slope of what is differentiated with respect to each of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanodoc.facts.notes import Draft
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.vocabulary.calls import LOG_PROBABILITIES, SUPERVISED

_OF_INTEREST = frozenset((*SUPERVISED, *LOG_PROBABILITIES, "logsumexp"))
_MOST = 1_000  # single numbers, of any function: what the loss is the sum of
_THE_SAME = 1e-3  # of the largest slope: the rounding of bfloat16 is greater than that of weights


class Slopes:
    """Holds what one step's loss functions and reductions give until it is differentiated."""

    def __init__(self) -> None:
        self._given: list[tuple[Draft, torch.Tensor]] = []

    def begin(self) -> None:
        """Another step is about to be looked at."""
        self._given = []

    def note(self, name: str, out: object, draft: Draft) -> None:
        """A call gave `out`; its notes get a slope later."""
        if not isinstance(out, torch.Tensor) or not out.requires_grad:
            return
        if name in _OF_INTEREST or (out.dim() == 0 and len(self._given) < _MOST):
            self._given.append((draft, out))

    def differentiated(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated. A slope is noted where it is one number for all
        samples, at one element each: advantages and weights of one's own have signs of their
        own."""
        given, self._given = self._given, []
        if not given or not loss.requires_grad:
            return
        with DisableTorchFunction(), torch.enable_grad():
            try:
                slopes = torch.autograd.grad(
                    loss, [out for _, out in given], retain_graph=True, allow_unused=True
                )
            except RuntimeError:  # a graph that cannot be walked twice
                return
            for (draft, _), slope in zip(given, slopes, strict=True):
                value = _single(slope) if slope is not None else None
                if value is not None:
                    draft.notes = replace(draft.notes, slope=value)


def _single(slope: torch.Tensor) -> float | None:
    """The one value that all samples have in common."""
    flat = slope.detach().double()
    there = flat != 0
    values = flat[there]
    picks = flat.dim() < 2 or int(there.sum(-1).max()) == 1 or int(there.sum(1).max()) == 1
    if not values.numel() or not picks:
        return None
    first = float(values.flatten()[0])
    alike = bool(((values - first).abs() <= _THE_SAME * abs(first)).all())
    return first if alike else None
