"""How many elements of a value are bad, in one or another sense."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.examination.sample import as_tensor

_LARGEST = 1 << 30  # bytes of an array that is read


def at_least(least: float, value: Any) -> int:
    """How many elements of a floating tensor or array are `least` or more, by their |value|; 0 for
    a single number."""
    held = as_tensor(value)
    if held is None or held.numel() < 2 or not held.is_floating_point():
        return 0
    return int((held.abs() >= least).sum())


def not_finite(value: Any) -> int:
    """How many elements of a tensor, an array, a table or a number are NaN or inf; 0 for anything
    else."""
    if isinstance(value, float):
        return int(value != value or value in (float("inf"), float("-inf")))
    if isinstance(value, torch.Tensor):
        plain = (
            value.layout is torch.strided and not value.is_nested and value.device.type != "meta"
        )
        floating = value.is_floating_point() or value.is_complex()
        if not (plain and floating) or value.numel() * value.element_size() > _LARGEST:
            return 0
        return int((~torch.isfinite(value.detach())).sum())
    return _not_finite_array(value)


def _not_finite_array(value: Any) -> int:
    """Of NumPy's arrays and numbers, and of Pandas' tables, without importing either."""
    root = type(value).__module__.partition(".")[0]
    if root == "pandas" and hasattr(value, "select_dtypes"):
        value = value.select_dtypes("number")
    if root == "pandas" and hasattr(value, "to_numpy"):
        value = value.to_numpy()
    elif root != "numpy":
        return 0
    dtype = getattr(value, "dtype", None)
    if getattr(dtype, "kind", " ") not in "fc" or value.nbytes > _LARGEST:
        return 0
    import numpy as np

    return int((~np.isfinite(value)).sum())
