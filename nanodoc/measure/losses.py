"""What is measured of the values that a loss function takes and gives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from nanodoc.accelerator import in_widest
from nanodoc.facts.notes import (
    AllLabels,
    CallNotes,
    ClassCounts,
    LabelNotes,
    LossNotes,
    Range,
)
from nanodoc.measure.constants import Constants
from nanodoc.measure.labels import blanks, class_dimension
from nanodoc.measure.pairs import nearness_of_pairs
from nanodoc.tensors.slices import equal_along, slack
from nanodoc.vocabulary.calls import BINARIES, BINARY, CLASSIFICATION, OF_SIGNS, REGRESSION

_MEASURED = frozenset((*CLASSIFICATION, *BINARIES, *REGRESSION, *OF_SIGNS, "kl_div", "ctc_loss"))
_FEWEST_SLICES = 4
"""Fewer samples may be equal by chance."""
_SLACK = 0.05
"""Of the targets' range: noise around the end of an activation's range is within its reach."""


class LossValues:
    """Counts the labels of losses with class weights over several batches, and what the best
    constant answer to all targets costs."""

    def __init__(self) -> None:
        self._weighted = 0
        self._counts: dict[int, torch.Tensor] = {}
        self._constants = Constants()

    def begin(self) -> None:
        """Another batch is about to be looked at."""
        self._weighted = 0
        self._constants.begin()

    def measure(
        self, name: str, tensors: list[torch.Tensor], options: dict[str, Any], out: Any
    ) -> CallNotes | None:
        """None for what is no loss function, or is given too little."""
        found = self._measured(name, tensors, options, out)
        if found is None or name not in (*CLASSIFICATION, *BINARIES, *REGRESSION):
            return found
        return replace(found, constant=self._constants.note(name, tensors, options, out))

    def _measured(
        self, name: str, tensors: list[torch.Tensor], options: dict[str, Any], out: Any
    ) -> CallNotes | None:
        if name not in _MEASURED:
            return None
        value, given = number_of(out), tensors[0]
        if name in OF_SIGNS:
            target = tensors[-1]
            return CallNotes(
                value=value, loss=LossNotes(targets=range_of(target), zeros=_zeros(target))
            )
        if name == "ctc_loss" and given.is_floating_point():
            sums = range_of(in_widest(given.detach()).logsumexp(-1))
            labels = blanks(tensors[1], options) if len(tensors) > 1 else None
            return CallNotes(value=value, loss=LossNotes(log_sums=sums), blanks=labels)
        if len(tensors) < 2:
            return None
        target = tensors[1]
        if name in CLASSIFICATION:
            return CallNotes(
                value=value,
                loss=LossNotes(inputs=range_of(given), equal=_equal_axes(name, given, target)),
                labels=_labels(given, target, options),
                pairs=nearness_of_pairs(given, target),
                all_labels=self._all_labels(target, options) if options.get("weights") else None,
            )
        if name == BINARY and options.get("weights"):
            return CallNotes(value=value, all_labels=self._all_labels(_binary(target), options))
        if name in BINARIES:
            return CallNotes(
                value=value,
                loss=LossNotes(targets=range_of(target), equal=_equal_axes(name, given, target)),
                class_dimension=classes_along(tensors[:2]),
            )
        if name in REGRESSION:
            return CallNotes(
                value=value,
                loss=_out_of_reach(
                    LossNotes(
                        inputs=range_of(given),
                        targets=range_of(target),
                        equal=_equal_axes(name, given, target),
                    ),
                    target,
                ),
                class_dimension=classes_along(tensors[:2]),
            )
        if name == "kl_div":
            loss = LossNotes(inputs=range_of(given), targets=range_of(target))
            return CallNotes(value=value, loss=loss)
        return None

    def _all_labels(self, target: torch.Tensor, options: dict[str, Any]) -> AllLabels | None:
        """How often the classes were labels in all batches so far, of a loss with class weights and
        of labels one by one."""
        self._weighted += 1
        if target.dim() != 1 or target.is_floating_point():
            return None
        classes = len(options["weights"])
        kept = target[(target >= 0) & (target < classes) & (target != options.get("ignore_index"))]
        counts = torch.bincount(kept.long().cpu(), minlength=classes)
        known = self._counts.get(self._weighted)
        if known is not None and known.shape == counts.shape:
            counts = counts + known
        self._counts[self._weighted] = counts
        least = int(counts.where(counts > 0, counts.max() + 1).argmin())
        return AllLabels(
            labels=int(counts.sum()),
            top=int(counts.argmax()),
            top_count=int(counts.max()),
            least=least,
            least_count=int(counts[least]),
        )


def _labels(given: torch.Tensor, target: torch.Tensor, options: dict[str, Any]) -> LabelNotes:
    classes = given.shape[1] if given.dim() > 1 else given.shape[0]
    if target.is_floating_point() or not target.numel():
        return LabelNotes(classes=classes)
    kept = target[target != options.get("ignore_index", -100)]
    found = None
    if kept.numel() and int(kept.min()) >= 0 and int(kept.max()) < max(classes, 1):
        counts = torch.bincount(kept.flatten().long(), minlength=int(classes))
        seen = counts[counts > 0]
        found = ClassCounts(
            top=int(counts.argmax()),
            top_count=int(counts.max()),
            least_count=int(seen.min()),
            seen=int(seen.numel()),
        )
    ignored = target.numel() - kept.numel()
    return LabelNotes(classes=classes, targets=target.numel(), ignored=ignored, counts=found)


def _equal_axes(name: str, given: torch.Tensor, target: torch.Tensor) -> tuple[int, ...]:
    """The axes of the predictions along which they are equal and the targets are not."""
    if given.dim() < 2 or not given.is_floating_point() or not given.numel():
        return ()
    numbers = name in CLASSIFICATION and not target.is_floating_point()
    if not numbers and given.shape != target.shape:
        return ()
    allowed = slack(given)
    return tuple(
        axis
        for axis, size in enumerate(given.shape)
        if size >= (_FEWEST_SLICES if axis != 1 else 2)
        and equal_along(given, axis, allowed)
        and not _targets_equal(target, axis, numbers=numbers)
    )


def _targets_equal(target: torch.Tensor, axis: int, *, numbers: bool) -> bool:
    """`numbers`: they are of classes, and have no axis for these."""
    if numbers and axis == 1:
        return False
    return equal_along(target, axis - 1 if numbers and axis else axis, 0.0)


def _binary(target: torch.Tensor) -> torch.Tensor:
    """Labels 0 and 1 one by one; none where some are neither."""
    labels = target.flatten()
    return labels.long() if bool(((labels == 0) | (labels == 1)).all()) else labels


def _zeros(target: torch.Tensor) -> float | None:
    """The share of the targets that are 0; None where some are neither 0 nor 1."""
    plain = bool(((target == 0) | (target == 1)).all()) and target.numel() > 1
    return float((target == 0).float().mean()) if plain else None


def range_of(tensor: torch.Tensor) -> Range | None:
    """None for no values, and for complex ones."""
    if not tensor.numel() or tensor.is_complex():
        return None
    low, high = torch.aminmax(tensor.detach())
    return Range(float(low), float(high))


def classes_along(tensors: list[torch.Tensor]) -> int | None:
    """The dimension of the classes, of labels of 0 and 1 beside scores of their shape."""
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return None
    for labels in tensors:
        found = None if labels.requires_grad else class_dimension(labels)
        if found is not None:
            return found
    return None


def _out_of_reach(notes: LossNotes, target: torch.Tensor) -> LossNotes:
    """The notes with the shares of the targets that ReLU, sigmoid and tanh can't return."""
    if not target.numel():
        return notes
    values = in_widest(target.detach())
    slack = _SLACK * float(values.max() - values.min())
    return replace(
        notes,
        below_0=float((values < -slack).float().mean()),
        outside_01=float(((values < -slack) | (values > 1 + slack)).float().mean()),
        outside_11=float((values.abs() > 1 + slack).float().mean()),
    )


def number_of(out: Any) -> float:
    """NaN for what is no single number."""
    return float(out) if isinstance(out, torch.Tensor) and out.numel() == 1 else math.nan
