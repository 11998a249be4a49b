"""What a weighted sampler makes of the classes of a data set."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from torch.utils.data import WeightedRandomSampler

from nanodoc.examination.sample import parts_of, seed_all
from nanodoc.facts.items import SkewedSampling

_LOOKED_AT = 1024  # samples
_FEWEST = 5  # of each class
_SAME = 1e-3  # of a class's mean weight: what its samples' weights differ by
_IMBALANCED = 2.0  # most frequent class to least frequent
_MORE = 1.5  # times as imbalanced


def skewed_sampling(dataset: Any, sampler: Any, until: float) -> SkewedSampling | None:
    """Classes of which the frequent ones are drawn with greater weight, or samples that have no
    weight; None where weights are none of classes, or even them out. Asks until the clock says
    `until`."""
    if not isinstance(sampler, WeightedRandomSampler) or len(sampler.weights) > len(dataset):
        return None
    weights = torch.as_tensor(sampler.weights, dtype=torch.float64)
    of_samples = len(weights) == len(dataset)
    by_class: dict[int, list[float]] = defaultdict(list)
    for number in range(0, len(dataset), -(-len(dataset) // _LOOKED_AT)):
        if time.monotonic() > until:
            break
        seed_all(0)
        label = next(reversed(_numbers(dataset[number])), None)
        if label is None:
            return None
        by_class[label].append(float(weights[number]) if of_samples else 1.0)
    if not of_samples:  # a data set may have grown since; as many as classes are those of classes
        of_classes = len(by_class) > 1 and len(weights) in (len(by_class), max(by_class) + 1)
        return SkewedSampling(weights=len(weights), samples=len(dataset)) if of_classes else None
    means = {label: sum(known) / len(known) for label, known in by_class.items()}
    alike = all(
        max(known) - min(known) <= _SAME * means[label] for label, known in by_class.items()
    )
    if len(by_class) < 2 or not alike or min(map(len, by_class.values())) < _FEWEST:
        return None
    by_class = {label: known for label, known in by_class.items() if means[label] > 0}
    if len(by_class) < 2:
        return None
    most, least = (pick(by_class, key=lambda label: len(by_class[label])) for pick in (max, min))
    there = len(by_class[most]) / len(by_class[least])
    drawn = there * means[most] / means[least]
    if there < _IMBALANCED or drawn < _MORE * there:
        return None
    return SkewedSampling(
        weights=len(weights),
        samples=len(dataset),
        most=most,
        least=least,
        there=there,
        drawn=drawn,
    )


def _numbers(sample: Any) -> list[int]:
    """Its single whole numbers; a label is the last of them as a rule."""
    if isinstance(sample, (list, tuple)):
        return [number for part in sample for number in _numbers(part)]
    if isinstance(sample, dict):
        return [number for part in sample.values() for number in _numbers(part)]
    if type(sample) in (int, bool):
        return [int(sample)]
    return [
        int(part)
        for _, part in parts_of(sample)
        if part.numel() == 1 and not part.is_floating_point()
    ]
