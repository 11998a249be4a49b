"""What a snapshot holds, to be shown. Plain, frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTensor:
    """One tensor of a snapshot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None = None
    """Of its finite elements; None where there are none, or where they have no order."""
    maximum: float | None = None
    nonfinite: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotFacts:
    """A step as it began."""

    step: int | None
    """None of a file that holds no more than inputs and weights."""
    loss: float | None
    """What the step came to."""
    grad_norm: float | None
    made_with: str
    """torch, device, platform and Python."""
    indices: tuple[int, ...]
    """The data set's, of the batch's samples; empty where they are not known."""
    parts: tuple[tuple[str, tuple[HeldTensor, ...]], ...]
    """(batch, model, gradients or optimizer, its tensors)"""
