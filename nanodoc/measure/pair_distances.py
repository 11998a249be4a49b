"""How far apart the two inputs of a pair are, by its label, and the three of a triplet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from nanodoc.facts.loop import PairDistances, TripletDistances
from nanodoc.measure.copies import rows_of

_FEWEST = 16  # pairs of each label
_FEWEST_NUMBERS = 4  # of a sample


def pair_distances(leaves: Mapping[str, Sequence[torch.Tensor]]) -> tuple[PairDistances, ...]:
    """Of the only two parts of the batches that are alike in shape and floating, for every part
    that has one of two labels for each sample: 0 and 1, or −1 and 1. The distances are Euclidean;
    `apart` is Welch's t of their two means."""
    alike = [path for path, tensors in leaves.items() if _is_input(tensors)]
    if len(alike) != 2 or leaves[alike[0]][0].shape[1:] != leaves[alike[1]][0].shape[1:]:
        return ()
    first, second = (rows_of(leaves[path]) for path in alike)
    if first.shape != second.shape:
        return ()
    distances = (first - second).norm(dim=1)
    found = []
    for path, tensors in leaves.items():
        if path in alike or any(t.dim() == 0 or t.numel() != len(t) for t in tensors):
            continue
        labels = rows_of(tensors).flatten()
        values = labels.unique().tolist() if len(labels) == len(distances) else []
        if values not in ([0.0, 1.0], [-1.0, 1.0]):
            continue
        low, high = distances[labels == values[0]], distances[labels == values[1]]
        if min(len(low), len(high)) < _FEWEST:
            continue
        error = math.sqrt(float(low.var() / len(low) + high.var() / len(high)))
        if error > 0 and math.isfinite(error):
            means = float(low.mean()), float(high.mean())
            found.append(
                PairDistances(
                    path=path,
                    inputs=(alike[0], alike[1]),
                    low=means[0],
                    high=means[1],
                    apart=(means[1] - means[0]) / error,
                    pairs=len(labels),
                )
            )
    return tuple(found)


def triplet_distances(
    leaves: Mapping[str, Sequence[torch.Tensor]],
) -> tuple[TripletDistances, ...]:
    """Of the only three parts of the batches that are alike in shape and floating, with each of
    them as the anchor. The distances are Euclidean; `apart` is the t of paired differences."""
    alike = [path for path, tensors in leaves.items() if _is_input(tensors)]
    if len(alike) != 3:
        return ()
    rows = {path: rows_of(leaves[path]) for path in alike}
    if len({values.shape for values in rows.values()}) != 1 or len(rows[alike[0]]) < _FEWEST:
        return ()
    found = []
    for anchor in alike:
        for one, other in itertools.combinations([path for path in alike if path != anchor], 2):
            first, second = ((rows[anchor] - rows[path]).norm(dim=1) for path in (one, other))
            error = float((first - second).std()) / math.sqrt(len(first))
            if error > 0 and math.isfinite(error):
                found.append(
                    TripletDistances(
                        anchor=anchor,
                        others=(one, other),
                        means=(float(first.mean()), float(second.mean())),
                        apart=float((first - second).mean()) / error,
                        triplets=len(first),
                    )
                )
    return tuple(found)


def _is_input(tensors: Sequence[torch.Tensor]) -> bool:
    first = tensors[0]
    floating = first.is_floating_point() and first.dim() > 1
    alike = all(t.shape[1:] == first.shape[1:] for t in tensors)
    return floating and alike and first[:1].numel() >= _FEWEST_NUMBERS
