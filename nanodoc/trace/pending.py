"""Statistics of ops that are still on a device when the trace is over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def are_finite(pending: Mapping[int, torch.Tensor]) -> Iterator[tuple[int, bool]]:
    """(position, whether it is finite) of every 0-dim tensor, read with one copy per device and
    dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, value in pending.items():
        groups.setdefault((value.device, value.dtype), []).append(position)
    for positions in groups.values():
        stacked = torch.stack([pending[position] for position in positions])
        yield from zip(positions, torch.isfinite(stacked).tolist(), strict=True)
