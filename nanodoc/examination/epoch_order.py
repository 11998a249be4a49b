"""Whether passes over the data have one and the same order though they are meant to be shuffled."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.utils.data import DistributedSampler

from nanodoc.examination.making import Source
from nanodoc.facts.loop import OneOrder
from nanodoc.facts.source import SourceSpan


def one_order(
    source: Source, steps: int, made_at: Callable[[object], SourceSpan | None]
) -> OneOrder | None:
    """Of a run of so many steps; None where the order changes, or nothing is known of it. A
    DistributedSampler shuffles by its seed and its epoch, which `set_epoch` tells it."""
    sampler = source.sampler
    if not isinstance(sampler, DistributedSampler) or not sampler.shuffle or sampler.epoch:
        return None
    index_sampler = getattr(source.data, "_index_sampler", None)
    try:
        batches = len(index_sampler)  # type: ignore[arg-type]  # none has no length
    except TypeError:
        return None
    passes = math.ceil(steps / batches) if batches else 0
    if passes < 2 or batches < 2:
        return None
    return OneOrder(passes=passes, batches=batches, line=made_at(sampler))
