"""What the best constant answer costs: the loss of a model that ignores its inputs and knows how
the targets are distributed. Measured from the targets that loss functions are given."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.facts.notes import ConstantNotes
from nanodoc.vocabulary.calls import BINARIES, CLASSIFICATION

_ROWS = 32
"""Samples from which on each number of a target has a constant of its own."""
_MOST_COLUMNS = 1 << 16
_MOST = 1 << 21  # elements of targets that are kept, of one call


@dataclass(eq=False)
class _Pooled:
    """One call of a step, over the batches so far."""

    name: str
    shape: tuple[int, ...]
    """Of a sample of the target; of classes, their number."""
    losses: float = 0.0
    weight: float = 0.0
    """What the losses were summed with: elements, or class weights."""
    labels: int = 0
    counts: torch.Tensor | None = None
    targets: list[torch.Tensor] = field(default_factory=list)


class Constants:
    """Told of every call of a loss function; the batches of one look are pooled."""

    def __init__(self) -> None:
        self._calls = 0
        self._known: dict[int, _Pooled] = {}

    def begin(self) -> None:
        """Another batch is about to be looked at."""
        self._calls = 0

    def note(
        self, name: str, tensors: list[torch.Tensor], options: dict[str, Any], out: Any
    ) -> ConstantNotes | None:
        """None where no constant answer is known: the loss is no mean or sum of its elements, both
        sides of it learn, other weights than those of classes are involved, or each sample of a
        batch is a class of its own."""
        self._calls += 1
        number = isinstance(out, torch.Tensor) and out.numel() == 1
        reduction = options.get("reduction", "mean")
        if not number or reduction not in ("mean", "sum") or len(tensors) < 2:
            return None
        given, target = tensors[:2]
        if target.requires_grad:
            given, target = target, given
        if target.requires_grad or not target.numel() or target.is_complex():
            return None
        if name in CLASSIFICATION:
            return self._of_classes(name, given, target, options, float(out))
        if given.shape != target.shape or len(tensors) > 2 or options.get("weights"):
            return None
        pooled = self._pooled(name, tuple(target.shape[1:]))
        size = target.numel()
        if pooled is None or sum(map(torch.numel, pooled.targets)) + size > _MOST:
            return None
        pooled.targets.append(target.detach().double())
        pooled.losses += float(out) * (size if reduction == "mean" else 1)
        pooled.weight += size
        return _of_values(pooled)

    def _pooled(self, name: str, shape: tuple[int, ...]) -> _Pooled | None:
        known = self._known.setdefault(self._calls, _Pooled(name, shape))
        return known if (known.name, known.shape) == (name, shape) else None

    def _of_classes(
        self,
        name: str,
        given: torch.Tensor,
        target: torch.Tensor,
        options: dict[str, Any],
        value: float,
    ) -> ConstantNotes | None:
        classes = int(given.shape[1] if given.dim() > 1 else given.shape[0])
        weights, smoothing = options.get("weights"), options.get("label_smoothing") or 0.0
        if target.is_floating_point() or classes < 2 or weights == () or (weights and smoothing):
            return None  # probabilities for each class; or weights that are not known
        kept = target[target != options.get("ignore_index", -100)].flatten().long()
        pooled = self._pooled(name, (classes,))
        if pooled is None or not kept.numel() or int(kept.min()) < 0 or int(kept.max()) >= classes:
            return None
        counts = torch.bincount(kept, minlength=classes).double().cpu()
        if bool((counts == 1).all()):
            return None  # each sample is a class of its own, as where a batch is told apart
        by = counts * torch.tensor(weights, dtype=torch.double) if weights else counts
        pooled.counts = by if pooled.counts is None else pooled.counts + by
        size = float(by.sum())
        pooled.labels += kept.numel()
        pooled.losses += value * (size if options.get("reduction", "mean") == "mean" else 1)
        pooled.weight += size
        seen = int((pooled.counts > 0).sum())
        share = (1 - smoothing) * pooled.counts / pooled.counts.sum() + smoothing / classes
        # the entropy of few labels is less than that of all (Miller 1955)
        missing = (seen - 1) / (2 * pooled.labels)
        return ConstantNotes(
            value=pooled.losses / pooled.weight,
            constant=float(torch.special.entr(share).sum()) + missing,
            targets=pooled.labels,
            kinds=seen,
        )


def _of_values(pooled: _Pooled) -> ConstantNotes | None:
    values = torch.cat(pooled.targets) if pooled.targets[0].dim() else torch.stack(pooled.targets)
    rows = values.reshape(len(values), -1)
    each = len(rows) >= _ROWS and rows.shape[1] <= _MOST_COLUMNS
    rows = rows if each else rows.reshape(-1, 1)
    count = len(rows)
    if count < _ROWS:
        return None
    if pooled.name in BINARIES:
        share = rows.mean(0)
        if bool((share < 0).any() or (share > 1).any()):
            return None
        mixed = (share > 0) & (share < 1)
        lost = torch.special.entr(share) + torch.special.entr(1 - share) + mixed / (2 * count)
    elif pooled.name == "mse_loss":
        lost = rows.var(0)
    elif pooled.name == "l1_loss":
        lost = (rows - rows.median(0).values).abs().mean(0) * count / (count - 1)
    else:
        return None
    constant = float(lost.mean())
    return ConstantNotes(
        value=pooled.losses / pooled.weight,
        constant=constant,
        targets=count,
        kinds=1 if math.isfinite(constant) else 0,
    )
