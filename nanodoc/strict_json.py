"""Non-finite numbers in strict JSON, for the report and the history alike."""

from __future__ import annotations

import math
from typing import Any


def strict(value: Any) -> Any:
    """`value` with non-finite floats as strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
