"""Whether the slices of a tensor along one of its axes are equal."""

from __future__ import annotations

import torch

_ROUNDINGS = 32
"""Sums over some hundred elements in another order differ by less."""


def slack(tensor: torch.Tensor) -> float:
    """By how much two equal values of a tensor may differ: rounding in float32 and float64, nothing
    in types with few digits and in integers."""
    if tensor.dtype not in (torch.float32, torch.float64):
        return 0.0
    return _ROUNDINGS * torch.finfo(tensor.dtype).eps * float(tensor.detach().abs().max())


def equal_along(tensor: torch.Tensor, axis: int, allowed: float) -> bool:
    """All slices along the axis differ by no more than `allowed`; False where some value is not
    finite."""
    values = tensor.detach()
    if values.dtype == torch.bool:
        values = values.byte()
    spread = values.amax(axis) - values.amin(axis)
    return bool((spread <= allowed).all())
