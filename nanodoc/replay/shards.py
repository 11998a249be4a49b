"""The sharded tensors of a model and its optimizers in a folder, by torch.distributed.checkpoint:
each rank writes and reads its own parts, also where there are more or fewer ranks than there were.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from nanodoc.errors import UsageError, said
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.shard_files import ShardReader
from nanodoc.tensors.plain import is_sharded

_MODEL, _OPTIMIZER = "model", "optimizer"


def sharded_tensors(recipe: Recipe) -> dict[str, torch.Tensor]:
    """The DTensors of the model and of its optimizers' states, by names that are the same on every
    rank."""
    found = {f"{_MODEL}.{name}": tensor for name, tensor in recipe.model.state_dict().items()}
    for number, optimizer in enumerate(recipe.optimizers):
        for row, state in optimizer.state_dict()["state"].items():
            found |= {f"{_OPTIMIZER}{number}.{row}.{key}": value for key, value in state.items()}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, torch.Tensor) and is_sharded(value)
    }


def write_shards(recipe: Recipe, folder: Path) -> None:
    """Every rank writes its parts; all have to call it. Raises `OSError` or what torch raises."""
    tensors = {name: tensor.detach() for name, tensor in sharded_tensors(recipe).items()}
    with warnings.catch_warnings(action="ignore"):
        save(tensors, storage_writer=FileSystemWriter(folder, overwrite=False))


def read_shards(folder: Path, recipe: Recipe, content: dict[str, Any]) -> dict[str, Any]:
    """The content of a rank's snapshot with what the folder holds of the model and its optimizers,
    sharded as `recipe` is. Where there are several ranks, all have to call it. Raises
    `UsageError`."""
    model = dict(content["model"])
    saved = content.get("optimizers")
    if not isinstance(saved, list) or len(saved) != len(recipe.optimizers):
        raise UsageError(f"{folder} does not match the training: it has different optimizers")
    optimizers = [_with_states(state, folder) for state in saved]
    reader = ShardReader(folder)
    tensors = dict(_made(recipe, reader.tensors))
    try:
        with warnings.catch_warnings(action="ignore"):
            load(tensors, storage_reader=reader, no_dist=not dist.is_initialized())
    except UsageError:
        raise
    except Exception as error:  # of any rank, and of what torch finds wrong in the files
        raise UsageError(f"{folder} does not match the training: {said(error)[:200]}") from error
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        if kind == _MODEL:
            model[rest] = tensor
            continue
        row, _, key = rest.partition(".")
        states = optimizers[int(kind.removeprefix(_OPTIMIZER))]["state"]
        states[int(row)] = {**states.get(int(row), {}), key: tensor}
    return {**content, "model": model, "optimizers": optimizers}


def _with_states(saved: Any, folder: Path) -> dict[str, Any]:
    """An optimizer's state_dict whose states can be added to. Raises `UsageError`."""
    states = saved.get("state", {}) if isinstance(saved, dict) else None
    if not isinstance(states, dict) or not all(isinstance(one, dict) for one in states.values()):
        raise UsageError(
            f"{folder} is not a snapshot written by nanodoc: an optimizer has no state"
        )
    return {**saved, "state": dict(states)}


def _made(
    recipe: Recipe, sizes: Mapping[str, tuple[torch.Size, torch.dtype]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors for what the folder holds, sharded as the recipe's own are."""
    state = recipe.model.state_dict()
    owned = [
        [p for group in optimizer.param_groups for p in group["params"]]
        for optimizer in recipe.optimizers
    ]
    for name, (size, dtype) in sizes.items():
        kind, _, rest = name.partition(".")
        like: Any = None
        if kind == _MODEL:
            like = state.get(rest)
        else:
            number, row = kind.removeprefix(_OPTIMIZER), rest.partition(".")[0]
            if number.isascii() and number.isdigit() and row.isascii() and row.isdigit():
                rows = owned[int(number)] if int(number) < len(owned) else []
                like = rows[int(row)] if int(row) < len(rows) else None
        if not isinstance(like, torch.Tensor) or like.shape != size:
            raise UsageError(f"the snapshot does not match the training: it contains {name[:200]}")
        yield name, torch.empty_like(like, dtype=dtype, requires_grad=False)
