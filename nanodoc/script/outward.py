"""A loop whose iterations can't be run again by themselves: a graph that began before the loop is
gone when one of them is over (`for loss in losses: loss.backward()`). The step is then an iteration
of the loop around."""

from __future__ import annotations

from nanodoc.script.fingerprint import Fingerprint
from nanodoc.script.search import Candidate

_MOST_STEPS = 16
"""Optimizer steps of the larger step: more are an epoch, and take as long again."""
_LARGEST = 1 << 30
"""Bytes that the copies of its gradients may take."""


def goes_outward(inner: Candidate) -> bool:
    """There is a loop around it, and the gradients of its iteration can be kept."""
    parameters = list(inner.trained.recipe.model.parameters())
    size = sum(p.numel() * p.element_size() for p in parameters)
    return inner.around is not None and size * _MOST_STEPS <= _LARGEST


def as_begun(inner: Candidate) -> Candidate:
    """The iteration around it, as far as it has come."""
    outer = inner.around
    assert outer is not None
    first, *later = inner.fingerprints
    before = [loss for seen in outer.fingerprints for loss in seen.losses]
    outer.fingerprints = [Fingerprint([*before, *first.losses], first.gradients), *later]
    outer.optimizer_steps = inner.optimizer_steps
    return outer


def is_epoch(outer: Candidate) -> bool:
    """It has come to too many steps."""
    return outer.optimizer_steps > _MOST_STEPS
