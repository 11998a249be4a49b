"""What the content of a snapshot gives a replay: its recipe, its batches, its random states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nanodoc.errors import UsageError
from nanodoc.recipe.loader import split_entrypoint
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.plain_values import like
from nanodoc.replay.rng import RandomKeeper, RandomState
from nanodoc.replay.snapshot import random_state
from nanodoc.tensors.nested import tensor_leaves

_MOST_BATCHES = 3  # of the recipe's data, looked through for one that is not the snapshot's


def first_batches(recipe: Recipe) -> list[Any]:
    """The first batches of the recipe's own data, as many as it yields."""
    found: list[Any] = []
    try:
        for batch in recipe.data:
            found.append(batch)
            if len(found) == _MOST_BATCHES:
                break
    except Exception:
        # the data is the user's; without it only the containers' types and the other batch are
        # missing
        pass
    return found


def is_one_of(batch: Any, batches: list[Any]) -> bool:
    """The batch is one of the snapshot's."""
    own = [tensor for _, tensor in tensor_leaves(batch)]
    for saved in batches:
        theirs = [tensor for _, tensor in tensor_leaves(saved)]
        if len(own) == len(theirs) and all(
            a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(own, theirs, strict=True)
        ):
            return True
    return False


def batches_of(content: dict[str, Any], template: Any) -> list[Any]:
    """The snapshot's batches in the containers the recipe's own data uses."""
    if "batches" not in content:
        return [(content["x"], content["y"]) if "y" in content else content["x"]]
    return [like(batch, template) for batch in content["batches"]]


def random_state_of(content: dict[str, Any], device: torch.device) -> RandomState | None:
    """The snapshot's random states. Raises `UsageError` for ones that no generator takes."""
    rng = random_state(content)
    if rng is None:
        return None
    before = RandomKeeper(device).take()
    try:
        rng.restore(device)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise UsageError(
            f"the snapshot's random states are of no use: {str(error).splitlines()[0][:100]}"
        ) from error
    finally:
        before.restore(device)
    return rng


def mapping_of(content: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping of that name, empty where the content has none."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def trusted_entrypoint(content: dict[str, Any]) -> str:
    """The entrypoint a snapshot names, if it lies below the working folder: a stranger's file must
    not pick what runs."""
    named = content.get("entrypoint")
    if not isinstance(named, str):
        raise UsageError(
            "this snapshot names no entrypoint; give one with --entrypoint FILE.py:NAME"
        )
    path, _ = split_entrypoint(named)
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        raise UsageError(
            f"the snapshot wants to run {named}, which is outside this folder; allow it with "
            f"--entrypoint {named}"
        )
    if not path.exists():
        raise UsageError(
            f"the snapshot's recipe {named} is not here; say where it is with --entrypoint "
            "FILE.py:NAME"
        )
    return named
