"""Rounding without torch agrees with torch."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from nanodoc.rules.forward.floats import rounded


@given(st.floats(allow_nan=False, width=64), st.sampled_from(["float16", "bfloat16", "float32"]))
def test_rounding_agrees_with_torch(value: float, dtype: str) -> None:
    # through float32 first for bfloat16, as torch converts a Python number
    expected = float(
        torch.tensor(value, dtype=torch.float64).to(
            torch.float32 if dtype == "bfloat16" else getattr(torch, dtype)
        )
    )
    if dtype == "bfloat16":
        expected = float(torch.tensor(expected, dtype=torch.float32).to(torch.bfloat16))
    assert rounded(value, dtype) == expected or (
        math.isinf(expected) and math.isinf(rounded(value, dtype))
    )
