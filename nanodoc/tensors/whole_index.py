"""Where an element of a rank's part lies in the whole of a sharded tensor."""

from __future__ import annotations

import torch

from nanodoc.instrument.torch_private import local_shape_and_offset
from nanodoc.tensors.plain import is_sharded, local_of


def first_nonfinite(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The index, in the whole tensor, of the first NaN or inf that this rank holds of a DTensor;
    None where it holds none, where nothing is sharded, or where torch does not say which part it
    holds."""
    if not is_sharded(tensor):
        return None
    local = local_of(tensor)
    bad = (~torch.isfinite(local)).flatten().nonzero()
    if not bad.numel():
        return None
    inside = torch.unravel_index(bad[0, 0], local.shape)
    try:
        shape, offset = local_shape_and_offset(
            tensor.shape,
            tensor.device_mesh,  # type: ignore[attr-defined]  # of a DTensor
            tensor.placements,  # type: ignore[attr-defined]
        )
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError, NotImplementedError):
        return None
    if tuple(shape) != tuple(local.shape):
        return None
    return tuple(int(i) + int(first) for i, first in zip(inside, offset, strict=True))
