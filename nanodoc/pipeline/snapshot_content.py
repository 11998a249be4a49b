"""What the content of a snapshot gives a replay: its recipe, its batches, its random states."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from nanodoc.errors import UsageError, said
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.target import split_entrypoint
from nanodoc.replay.archive import first_line
from nanodoc.replay.plain_values import holds_dropped, like
from nanodoc.replay.rng import RandomKeeper, RandomState
from nanodoc.replay.saved_random import random_state
from nanodoc.tensors.nested import tensor_leaves

UNFIT = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)
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


def batches_of(content: dict[str, Any], template: Any, data: Any) -> list[Any]:
    """The snapshot's batches in the containers the recipe's own data uses. One of a class that a
    snapshot cannot hold is drawn again from `data`, the recipe's. Raises `UsageError` where that
    cannot be."""
    if "batches" not in content:
        return [(content["x"], content["y"]) if "y" in content else content["x"]]
    if holds_dropped(content["batches"]):
        return [_drawn_again(content, data)]
    try:
        return [like(batch, template) for batch in content["batches"]]
    except UNFIT as error:
        raise UsageError(f"the snapshot's batch cannot be used: {said(error)[:100]}") from error


def _drawn_again(content: dict[str, Any], data: Any) -> Any:
    rows = content.get("indices")
    draws = (
        isinstance(data, DataLoader)
        and not isinstance(data.dataset, IterableDataset)
        and data.batch_sampler is not None
    )
    if not draws or not isinstance(rows, list) or len(content["batches"]) != 1:
        raise UsageError(
            "the snapshot's batch is of a class that a snapshot cannot hold, and the indices of "
            "its samples are not known: it cannot be replayed"
        )
    try:
        return data.collate_fn([data.dataset[int(row)] for row in rows])
    except Exception as error:
        raise UsageError(
            f"the snapshot's batch was to be drawn again, but sample {rows[0]} and on raised "
            f"{type(error).__name__}: {said(error)[:200]}"
        ) from error


def random_state_of(content: dict[str, Any], device: torch.device) -> RandomState | None:
    """The snapshot's random states. Raises `UsageError` for ones that no generator takes."""
    before = RandomKeeper(device).take()
    try:
        rng = random_state(content)
        if rng is not None:
            rng.restore(device)
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
        raise UsageError(
            f"the snapshot's random states cannot be used: {first_line(error)[:100]}"
        ) from error
    finally:
        before.restore(device)
    return rng


def gradients_of(
    content: dict[str, Any], parameters: Sequence[torch.nn.Parameter]
) -> list[torch.Tensor | None] | None:
    """The gradients that the step began with, None where there were none or they do not fit."""
    saved = content.get("gradients")
    if not saved or len(saved) != len(parameters):
        return None
    return [None if g is None else g.to(p.device) for g, p in zip(saved, parameters, strict=True)]


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
    trusted_file(path, named, "FILE.py:NAME")
    return named


def trusted_file(path: Path, named: str, form: str) -> None:
    """Raises `UsageError` unless the file that a snapshot names is there, below the working folder,
    and is no part of an environment that lies there, too."""
    try:
        there, inside = path.exists(), is_own_code(path)
    except (OSError, ValueError) as error:  # a text that no file can have for its name
        why = getattr(error, "strerror", None) or "no file can have that name"
        raise UsageError(f"the snapshot's recipe is not a path: {why}") from error
    if not inside:
        raise UsageError(
            f"the snapshot wants to run {named}, which is outside this folder; to allow it, pass "
            f"--entrypoint {named}"
        )
    if not there:
        raise UsageError(
            f"the snapshot's recipe {named} is not here; pass its place with --entrypoint {form}"
        )


def trusted_module(name: str) -> None:
    """Raises `UsageError` unless what `python -m name` would run here is a file of the working
    folder's own. Imports nothing."""
    parts = name.split(".")
    places: list[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    for number in range(len(parts)) if all(part.isidentifier() for part in parts) else ():
        spec = PathFinder.find_spec(".".join(parts[: number + 1]), places)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if spec is not None and spec.submodule_search_locations is not None:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
    if spec is None or spec.origin is None or not is_own_code(Path(spec.origin)):
        raise UsageError(
            f"the snapshot wants to run -m {name}, which is not in this folder; to allow it, pass "
            f'--entrypoint "-m {name}"'
        )


def is_own_code(path: Path) -> bool:
    """A file below the working folder that belongs to no environment of installed packages."""
    here, file = Path.cwd().resolve(), path.resolve()
    if not file.is_relative_to(here):
        return False
    installed = {"site-packages", "dist-packages"} & set(file.parts)
    around = [folder for folder in file.parents if folder.is_relative_to(here) and folder != here]
    marked = any((f / "pyvenv.cfg").exists() or (f / "conda-meta").exists() for f in around)
    below = bool({Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()} & set(around))
    return not (installed or marked or below)
