"""The line that makes the values of inputs that are too far from mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nanodoc.examination.making import MakingSearch
from nanodoc.examination.sample import parts_of
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import FAR_MEAN, FAR_VALUE, TINY_VALUE, DataFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.made_with import leaves_unscaled

_PICTURE = 4  # dimensions of a batch of pictures


def far_leaf(evidence: Evidence) -> str | None:
    """The first part of the batch that ND107 may tell of."""
    leaves = evidence.data.leaves if evidence.data is not None else ()
    return next((leaf.path for leaf in leaves if leaf.floating and leaf.far), None)


def far_line(search: MakingSearch, data: DataFacts, path: str) -> SourceSpan | None:
    """Of pictures, the transform that leaves them between 0 and 255; else the line where a part of
    a sample first had its values; None where neither was seen."""
    leaf = next((leaf for leaf in data.leaves if leaf.path == path), None)
    if leaf is None:
        return None
    if len(leaf.shape) == _PICTURE and not leaf.tiny and (line := leaves_unscaled()) is not None:
        return line
    return search.of_part(0, lambda sample: _part_of(sample, _is_tiny if leaf.tiny else _is_far))


def _part_of(sample: Any, wanted: Callable[[torch.Tensor], bool]) -> torch.Tensor | None:
    """The first part of a sample of that kind."""
    parts = (part for _, part in parts_of(sample))
    return next((part for part in parts if part.is_floating_point() and wanted(part)), None)


def _is_far(part: torch.Tensor) -> bool:
    return float(part.abs().max()) > FAR_VALUE or abs(float(part.mean())) > FAR_MEAN


def _is_tiny(part: torch.Tensor) -> bool:
    return 0 < float(part.abs().max()) < TINY_VALUE
