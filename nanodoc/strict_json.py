"""Strict JSON, for the report and the history alike: non-finite numbers are strings, and no
character moves a cursor or ends a line."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def written(value: Any, *, indent: int | None = 2) -> str:
    """`value` as JSON. Letters of all languages stay as they are; characters that cannot be seen
    (controls, marks of direction, separators of lines, halves of surrogate pairs) are escaped."""
    text = json.dumps(
        strict(value), indent=indent, allow_nan=False, ensure_ascii=False, default=str
    )
    return _NOT_ASCII.sub(lambda m: m[0] if m[0].isprintable() else _escaped(m), text)


def in_ascii(text: str) -> str:
    """JSON for a stream that takes nothing else."""
    return _NOT_ASCII.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    letter = match[0]
    return json.dumps(letter)[1:-1] if letter != "\x7f" else "\\u007f"


def one_line(value: Any) -> str:
    """`value` as JSON on one line, in ASCII."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:  # a number that is not finite: seldom, and looking for one costs more
        return json.dumps(strict(value), allow_nan=False)


def strict(value: Any) -> Any:
    """`value` with non-finite floats as strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value
