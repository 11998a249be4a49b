"""Rounding a Python number to a tensor dtype, without torch."""

from __future__ import annotations

import struct

from nanodoc.facts.frames import LARGEST as LARGEST

HALF_MAX = 65504.0  # largest finite float16


def rounded(value: float, dtype: str) -> float:
    """`value` rounded to the nearest number of `dtype` (IEEE 754 binary16/32/64, bfloat16); inf
    where it overflows."""
    try:
        if dtype == "float16":
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        if dtype == "float32":
            return float(struct.unpack("<f", struct.pack("<f", value))[0])
        if dtype == "bfloat16":  # the upper half of a float32, rounded to nearest even
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
            return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    return value


def is_half(dtype: str | None) -> bool:
    return dtype in ("float16", "bfloat16")
