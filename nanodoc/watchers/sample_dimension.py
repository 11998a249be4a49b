"""How many samples the first batch has, where that is known, or why it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from nanodoc.tensors.nested import batch_size, is_list_of_samples, size_of_fields, tensor_leaves


def count_samples(data: object, batches: Sequence[Any]) -> tuple[int, str | None]:
    """The number of samples of the step's first batch, and why they can't be told apart, if so."""
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
    return size, _doubt(data, batch, size)


def _doubt(data: object, batch: Any, size: int) -> str | None:
    """Why `size`, the first dimension, may not count samples; None where it is known that it does:
    as many were drawn, or a field has one number for each. Sequences with time first share two
    dimensions, and nothing but their lengths differs from sequences with the batch first."""
    if isinstance(data, torch.utils.data.DataLoader) and data.batch_size is not None:
        drawn = data.batch_size
        # some samplers and data sets have no length
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            drawn = min(drawn, len(data.sampler))  # type: ignore[arg-type]
        if size != drawn:
            return (
                f"the batch's first dimension is {size}, but the DataLoader draws {drawn} samples: "
                "it may be time"
            )
        square = any(
            not tensor.is_nested and tensor.dim() > 1 and tensor.size(0) == tensor.size(1)
            for _, tensor in tensor_leaves(batch)
        )
        if square and data.collate_fn is not default_collate:
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
    return (
        "nothing shows whether the batch's first dimension counts samples or time steps (a 1-D "
        "tensor, such as class labels, would)"
    )
