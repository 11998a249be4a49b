"""What is measured of labels: blanks among those of a CTC loss, and the dimension of classes that
are written as 0 and 1."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.facts.notes import BlankNotes

_SOME = 4096  # elements that tell most others
_FEWEST = 64  # elements of labels written as 0 and 1: fewer add up to 1 by chance


def blanks(targets: torch.Tensor, options: dict[str, Any]) -> BlankNotes | None:
    """How many of a CTC loss's labels there are, how many of them are the blank, and how many of
    these stand behind the last other label of their sample. `targets`: (samples, longest), or all
    labels in one dimension."""
    lengths = options.get("target_lengths")
    if lengths is None or targets.is_floating_point() or targets.dim() not in (1, 2):
        return None
    rows = targets.split(lengths) if targets.dim() == 1 else list(targets)
    if len(rows) != len(lengths):
        return None
    count = blank = behind = 0
    for row, length in zip(rows, lengths, strict=True):
        labels = row[:length].tolist()
        own = [label == options["blank"] for label in labels]
        count += len(labels)
        blank += sum(own)
        behind += own[::-1].index(False) if False in own else len(own)
    return BlankNotes(labels=count, blanks=blank, behind=behind)


def class_dimension(labels: torch.Tensor) -> int | None:
    """The only dimension along which labels of 0 and 1 add up to 1 everywhere."""
    if labels.dim() < 2 or labels.numel() < _FEWEST:
        return None
    values = labels.detach()
    some = values.flatten()[:_SOME]
    if not bool(((some == 0) | (some == 1)).all()):
        return None
    if not bool(((values == 0) | (values == 1)).all()):
        return None
    sums = [
        dim
        for dim in range(values.dim())
        if values.shape[dim] > 1 and bool((values.sum(dim) == 1).all())
    ]
    return sums[0] if len(sums) == 1 else None
