"""A training that is run once more in a fresh process, to see more of how the first run ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nanodoc.artifacts import make_folder
from nanodoc.errors import UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.failure import Failure
from nanodoc.heartbeat.last_words import note_failure
from nanodoc.heartbeat.trail import here
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.batch_source import BatchSource
from nanodoc.replay.plain_values import like, plain
from nanodoc.replay.snapshot import save
from nanodoc.supervise.job import SecondRun


def changed_for(recipe: Recipe, again: SecondRun) -> Recipe:
    """The recipe with the one batch that failed."""
    if again.batch is not None:
        # dataclasses and named tuples get their types back
        template = next(iter(recipe.data), None)
        return replace(
            recipe, data=[like(batch, template) for batch in _read(Path(again.batch))], max_steps=1
        )
    return recipe


def load_here(recipe: Recipe, steps: int) -> tuple[int, Failure | None]:
    """Loads the batches of so many steps, and those that workers would have had ahead, in this
    process; nothing is trained. How many came, and the exception that ended it."""
    loader = loader_of(recipe.data)
    ahead = 0
    if loader is not None:
        ahead = loader.num_workers * (loader.prefetch_factor or 0)
        # not every one may be set otherwise
        vars(loader).update(num_workers=0, prefetch_factor=None, persistent_workers=False)
    feed, loaded = BatchSource(recipe.data), 0
    for step in range(steps + ahead):
        here().at(step, "data")
        try:
            drawn = feed.next()
        except UserCodeError as error:
            failure = describe_failure(error)
            note_failure(here(), failure, step)
            return loaded, failure
        if drawn is None:
            break
        loaded += 1
    return loaded, None


def write_batches(folder: Path, step: int, batches: list[Any]) -> Path:
    """The batches of a step alone, where nothing that lives on its device can be read any more.
    Raises `OSError`."""
    make_folder(folder)
    return save(
        {"batches": [plain(batch) for batch in batches]}, folder / f"nanodoc-step{step}-batch.pt"
    )


def _read(path: Path) -> list[Any]:
    batches: list[Any] = torch.load(path, weights_only=True, map_location="cpu")["batches"]
    return batches
