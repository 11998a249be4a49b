"""Where samples of a part of a data set lie in the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch.utils.data import Subset

from nanodoc.diagnosis.finding import Finding


def in_whole_data(dataset: Any, indices: Iterable[int]) -> tuple[int, ...] | None:
    """The indices of samples of a `Subset`, or of one in another, in the data set that it is a part
    of. None of any other data set, and where the `Subset` does not tell."""
    if not isinstance(dataset, Subset):
        return None
    try:
        while isinstance(dataset, Subset):
            indices = [int(dataset.indices[index]) for index in indices]
            dataset = dataset.dataset
    except (IndexError, KeyError, TypeError, ValueError):  # a class of the user's own
        return None
    return tuple(indices)


def with_whole_data(findings: tuple[Finding, ...], dataset: Any) -> tuple[Finding, ...]:
    """The findings, of which those that name samples of a `Subset` tell where these lie in the
    whole, if that is elsewhere."""
    return tuple(_with_whole(finding, dataset) for finding in findings)


def _with_whole(finding: Finding, dataset: Any) -> Finding:
    own = finding.culprit.dataset_indices
    whole = in_whole_data(dataset, own) if own else None
    if whole is None or whole == own:
        return finding
    few = ", ".join(map(str, whole[:_FEW])) + (", …" if len(whole) > _FEW else "")
    return replace(finding, evidence=(*finding.evidence, (IN_WHOLE, few)))


_FEW = 6  # samples that are named one by one
IN_WHOLE = "in the data set that the Subset is a part of"
