"""Objectives of variational inference, which weigh a batch by the number of all samples: what they
were told that is."""

from __future__ import annotations

import contextlib

import torch

from nanodoc.examination.labels import user_files
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.inspection import WeighedData
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.closure_state import ReachedState, reachable
from nanodoc.trace.returned import lines_calling

_LIBRARY = "gpytorch."
_TOLD = "num_data"


def weighed_data(recipe: Recipe, calls: StepCalls) -> WeighedData | None:
    """An objective of gpytorch (`VariationalELBO` and its kin) that was told of less than half of
    the samples that the loader's data set has; None where there is none, or the size of the data
    set is not known."""
    with contextlib.suppress(Exception):  # any object's own attributes
        loader = getattr(recipe.train_step, "loader", None) or loader_of(recipe.data)
        samples = len(loader.dataset)
        modules = [m for _, m in ReachedState(recipe).modules]
        for value in (*modules, *reachable(recipe)):
            told = getattr(value, _TOLD, None)
            if not isinstance(value, torch.nn.Module) or not isinstance(told, int):
                continue
            kind = next((k for k in type(value).__mro__ if k.__module__.startswith(_LIBRARY)), None)
            if kind is None or 2 * told > samples:
                continue
            name = type(value).__name__
            files = user_files(call.called_from or call.location for call in calls.calls)
            found = [line for file in files for line in lines_calling(file, (name,))]
            return WeighedData(
                objective=name,
                told=told,
                samples=samples,
                batch_size=getattr(loader, "batch_size", None),
                line=found[0] if len(found) == 1 else None,
            )
    return None
