"""A report without credentials: what a training says, is called with or has in its lines may hold
some, and reports are pasted into issues."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from nanodoc.environment.variables import CREDENTIALS_IN_URL, QUERY_OF_URL, SECRET_VALUES
from nanodoc.facts.source import SourceSpan

_Report = TypeVar("_Report")
_OPTION = re.compile(
    r"(?i)(--(?:[\w-]{0,40}-)?(?:password|secret|token|api[_-]?key)[ =])(?P<value>[^\s'\"]{3,})"
)
_ASSIGNED = re.compile(
    r"(?i)((?:password|passwd|secret|api[_-]?key|access[_-]?token|auth[_-]?token)\s*[=:]\s*['\"]?)"
    r"(?P<value>[^\s,;'\"()]{3,})"
)


def without_secrets(report: _Report) -> _Report:
    """The same dataclass with `*` for each character of a credential, wherever it stands, so that
    columns still count. File names and numbers stay as they are."""
    changed: _Report = _shown(report)
    return changed


def hidden(text: str) -> str:
    """`text` with `*` for each character of a credential."""
    if "://" in text:
        text = CREDENTIALS_IN_URL.sub(lambda m: "*" * (len(m[0]) - 1) + "@", text)
        text = QUERY_OF_URL.sub(lambda m: m[1] + "?" + "*" * (len(m[0]) - len(m[1]) - 1), text)
    text = SECRET_VALUES.sub(lambda m: "*" * len(m[0]), text)
    for pattern in (_ASSIGNED, _OPTION):
        text = pattern.sub(lambda m: m[1] + "*" * len(m["value"]), text)
    return text


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, SourceSpan):
        code = hidden(value.code)
        return value if code == value.code else dataclasses.replace(value, code=code)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {}
        for field in dataclasses.fields(value):
            old = getattr(value, field.name)
            new = _shown(old)
            if new is not old and field.init:
                changes[field.name] = new
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, (tuple, list)):
        parts = [_shown(part) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(parts) if not hasattr(value, "_fields") else type(value)(*parts)
    if isinstance(value, Mapping):
        shown = {key: _shown(part) for key, part in value.items()}
        return value if all(shown[key] is value[key] for key in shown) else shown
    return value
