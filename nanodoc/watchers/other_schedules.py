"""Learning rate schedules of other libraries than torch: objects that keep one of the run's
optimizers and step, without being optimizers themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.facts.loop import SchedulerFacts
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.frame_variables import attributes_of
from nanodoc.trace.returned import lines_calling


def other_schedules(
    values: Iterable[Any], optimizers: list[torch.optim.Optimizer], files: Iterable[str]
) -> Iterator[SchedulerFacts]:
    """Of the `values` that the step reads; each with the only line of the user's `files` that
    makes one of its class."""
    known = {id(optimizer) for optimizer in optimizers}
    files = [file for file in dict.fromkeys(files) if frame_kind(file) == USER]
    for value in values:
        held = attributes_of(value)
        if (
            id(held.get("optimizer")) in known
            and not isinstance(value, (LRScheduler, torch.optim.Optimizer))
            and "param_groups" not in held  # wrappers of an optimizer
            and callable(getattr(type(value), "step", None))
        ):
            kind = type(value).__name__
            made = [line for file in files for line in lines_calling(file, (kind,))]
            yield SchedulerFacts(type=kind, built_at=made[0] if len(made) == 1 else None)
