"""Whether a tensor has other values than before, in two numbers."""

from __future__ import annotations

import math

import torch

from nanodoc.accelerator import widest


def dense_values(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, or the values that a sparse one stores."""
    if tensor.layout == torch.sparse_coo:
        return tensor.coalesce().values()
    return tensor if tensor.layout == torch.strided else tensor.values()


def fingerprint(parameter: torch.Tensor) -> tuple[float, float]:
    """Two numbers that change with the values: their sum and the sum of their magnitudes."""
    values = dense_values(parameter.detach())
    if values.is_complex():
        values = torch.view_as_real(values)
    # quantised, or one of the eight-bit floats: such a parameter is not trained
    if not values.is_floating_point() or values.itemsize == 1:
        return 0.0, 0.0
    dtype = widest(values.device)
    return float(values.sum(dtype=dtype)), float(
        torch.linalg.vector_norm(values, ord=1, dtype=dtype)
    )


def width_over_he(weights: torch.Tensor) -> float | None:
    """The standard deviation of a layer's weights over sqrt(2 / fan_in) (He et al. 2015). None for
    fewer than two dimensions, or fewer than two values."""
    if weights.dim() < 2 or weights.numel() < 2:
        return None
    values = weights if weights.dtype in (torch.float32, torch.float64) else weights.float()
    return float(values.std()) / math.sqrt(2 / max(weights[0].numel(), 1))
