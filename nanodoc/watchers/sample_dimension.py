"""How many samples the first batch has, where that is known, or why it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from nanodoc.examination.network_calls import NetworkCall
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import batch_size, is_list_of_samples, size_of_fields, tensor_leaves

_UNTOLD = (
    "nothing shows whether the batch's first dimension counts samples or time steps (a 1-D tensor, "
    "such as class labels, would)"
)


def count_samples(loader: Any, batches: Sequence[Any]) -> tuple[int, str | None]:
    """The number of samples of the step's first batch, and why they can't be told apart, if so.
    `loader` may be any object."""
    if not batches:
        return 0, "the loop yields no batch; batches made inside the step are not checked"
    batch = batches[0]
    size = batch_size(batch)
    if size is None:
        if any(tensor.dim() for _, tensor in tensor_leaves(batch)):
            return 0, (
                "the batch's tensors differ in their first dimension, so nanodoc can't tell its "
                "samples apart"
            )
        return 0, (
            "nanodoc finds no tensor with a batch dimension in what the loop yields; batches made "
            "inside the step are not checked"
        )
    if size < 2:
        return size, f"the batch's first dimension is {size}, and the check needs two samples"
    return size, _doubt(loader, batch, size)


def drawn_by(recipe: Recipe) -> Any:
    """The loader of the training's batches, or what is known of a script's; None without one."""
    if isinstance(recipe.data, torch.utils.data.DataLoader):
        return recipe.data
    return getattr(recipe.train_step, "loader", None)


def batches_of(start: StepState) -> list[Any]:
    """What the step was given, or, where that has no samples, what it has drawn by itself."""
    if any(batch_size(batch) is not None for batch in start.batches):
        return start.batches
    drawn = [value for ended, value, _ in start.drawn or () if not ended]
    return [batch for batch in drawn if batch_size(batch) is not None] or start.batches


def rows_of(call: NetworkCall, size: int, doubt: str | None) -> tuple[int, str | None]:
    """How many rows a network was given, and why they may not be samples, if they may not; `size`
    and `doubt` are those of the batch."""
    rows = call.size
    if rows is None:
        return size, doubt or (
            None if size > 1 else "its arguments differ in their first dimension"
        )
    if rows < 2:
        return rows, f"its input's first dimension is {rows}, and the check needs two samples"
    if not size:
        return rows, _UNTOLD
    if rows != size:
        return rows, doubt or f"its input's first dimension is {rows}, of a batch of {size}"
    given = [tensor for _, tensor in tensor_leaves(call.given) if not tensor.is_nested]
    if call.path and any(t.dim() > 1 and t.size(0) == t.size(1) for t in given):
        return rows, "its input has two equal dimensions, and either may count the samples"
    return rows, doubt


def _drawing(loader: Any) -> tuple[int, Any] | None:
    """(the samples of a loader's first batch, its collate function); None where it does not batch
    single samples, or that is not known."""
    sampler = getattr(loader, "_index_sampler", None)
    drawn = getattr(sampler, "batch_size", None)
    if not isinstance(drawn, int):
        return None
    # some samplers and data sets have no length
    with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
        drawn = min(drawn, len(sampler.sampler))  # type: ignore[union-attr]  # it has a batch size
    return drawn, loader.collate_fn


def _doubt(loader: Any, batch: Any, size: int) -> str | None:
    """Why `size`, the first dimension, may not count samples; None where it is known that it does:
    as many were drawn, or a field has one number for each. Sequences with time first share two
    dimensions, and nothing but their lengths differs from sequences with the batch first."""
    drawing = _drawing(loader)
    if drawing is not None:
        drawn, collate = drawing
        if size != drawn:
            return (
                f"the batch's first dimension is {size}, but the DataLoader draws {drawn} samples: "
                "it may be time"
            )
        square = any(
            not tensor.is_nested and tensor.dim() > 1 and tensor.size(0) == tensor.size(1)
            for _, tensor in tensor_leaves(batch)
        )
        if square and collate is not default_collate:
            return (
                "a tensor of the batch has two equal dimensions, and with a custom collate_fn "
                "either may count the samples"
            )
        return None
    if is_list_of_samples(batch) or size_of_fields(batch) is not None:
        return None
    rows = [
        tensor
        for _, tensor in tensor_leaves(batch)
        if not tensor.is_nested and tensor.dim() and tensor.size(0) == size
    ]
    if any(tensor.dim() == 1 for tensor in rows) or len({int(t.size(1)) for t in rows}) > 1:
        return None
    return _UNTOLD
