"""Statistics of ops, of which some are still on a device when the trace is over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from nanodoc.tensors.plain import is_plain

# dtypes whose sum only overflows where float32 does
_STATISTICS = {torch.float32, torch.float64, torch.bfloat16}


def are_finite(pending: Mapping[int, torch.Tensor]) -> Iterator[tuple[int, bool]]:
    """(position, whether it is finite) of every 0-dim tensor, read with one copy per device and
    dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, value in pending.items():
        groups.setdefault((value.device, value.dtype), []).append(position)
    for positions in groups.values():
        stacked = torch.stack([pending[position] for position in positions])
        yield from zip(positions, torch.isfinite(stacked).tolist(), strict=True)


def statistic(tensor: torch.Tensor) -> list[bool | torch.Tensor]:
    """A number or two that are non-finite if any element is, on the CPU whether they are finite; a
    finite float32 tensor whose sum overflows is looked at again when its op is examined."""
    if not tensor.is_floating_point():
        if not tensor.is_complex():
            return []
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.numel() == 0 or not is_plain(tensor):
        return []
    try:
        # the sum of a float16 tensor overflows at 65504
        values = (tensor.sum(),) if tensor.dtype in _STATISTICS else torch.aminmax(tensor)
    except (RuntimeError, NotImplementedError):
        # sparse and 8-bit tensors have no such reduction: not screened
        return []
    # the CPU is not waited for
    return [math.isfinite(value.item()) if value.is_cpu else value for value in values]
