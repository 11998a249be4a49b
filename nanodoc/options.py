"""What an option is: declared once as a field of a dataclass, with its type, bounds, choices,
default, help and the commands that take it. Flags, keys of YAML and the documentation follow from
that."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

_LONGEST = 1e8  # seconds: three years


class BadValue(ValueError):
    """A value that an option does not take; the message is what it must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One option. `kind` is the field's annotation without None; `nullable`, whether None was part
    of it."""

    help: str
    """A sentence, without its full stop."""
    commands: tuple[str, ...]
    """Those that take it as a flag; empty: it is a key of YAML only."""
    least: int = 0
    """The smallest whole number."""
    most: int = 10**9
    """The largest whole number."""
    above_zero: bool = False
    """A time of 0 is none."""
    choices: tuple[str, ...] = ()
    shown_default: str = ""
    """The default in words, where the value does not say it."""
    flag: str = ""
    """As the command line spells it."""
    short: str = ""
    """The flag in one letter."""
    counted: bool = False
    """The flag is given once or more often."""
    path: bool = False
    """The text is a path."""
    repeated: bool = False
    """The flag may be given several times."""
    panel: str = ""
    """The heading that it stands under in --help."""
    metavar: str = ""
    """Its value, as the help writes it."""
    name: str = ""
    kind: Any = None
    nullable: bool = False
    default: Any = None

    @property
    def key(self) -> str:
        """As YAML spells it."""
        return self.name.replace("_", "-")

    def read(self, value: Any) -> Any:
        """The value of a flag or of YAML as the field's type. Raises `BadValue`."""
        if value is None and self.nullable:
            return None
        chosen = bool(self.choices) and self.kind is str
        return _one_of(self, value) if chosen else KINDS[self.kind].read(self, value)


def option(  # noqa: PLR0913 - what an option is, in one place
    default: Any,
    help: str,
    commands: tuple[str, ...],
    *,
    least: int = 0,
    most: int = 10**9,
    above_zero: bool = False,
    choices: tuple[str, ...] = (),
    shown_default: str = "",
    flag: str = "",
    short: str = "",
    counted: bool = False,
    path: bool = False,
    repeated: bool = False,
    panel: str = "",
    metavar: str = "",
) -> Any:
    """A dataclass field that is an option; `default` may be a type to be called for one."""
    told = Option(
        help=help,
        commands=commands,
        least=least,
        most=most,
        above_zero=above_zero,
        choices=choices,
        shown_default=shown_default,
        flag=flag,
        short=short,
        counted=counted,
        path=path,
        repeated=repeated,
        panel=panel,
        metavar=metavar,
    )
    if isinstance(default, type):
        return field(default_factory=default, metadata={"option": told})
    return field(default=default, metadata={"option": told})


def options_of(declared: type) -> dict[str, Option]:
    """The options that a dataclass declares, by the names of its fields."""
    hints = get_type_hints(declared)
    found = {}
    for declared_field in fields(declared):
        kinds = [kind for kind in get_args(hints[declared_field.name]) if kind is not NoneType]
        nullable = NoneType in get_args(hints[declared_field.name])
        told: Option = declared_field.metadata["option"]
        found[declared_field.name] = replace(
            told,
            name=declared_field.name,
            kind=kinds[0] if nullable else hints[declared_field.name],
            nullable=nullable,
            default=declared_field.default
            if declared_field.default_factory is MISSING
            else declared_field.default_factory(),
            flag=told.flag or "--" + declared_field.name.replace("_", "-"),
        )
    return found


def _one_of(option: Option, value: Any) -> str:
    if "off" in option.choices and value in (False,):  # YAML reads a bare `off` as false
        return "off"
    if value not in option.choices:
        raise BadValue("one of " + ", ".join(option.choices))
    return str(value)


def _whole(option: Option, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < option.least:
        raise BadValue(f"a whole number of at least {option.least}")
    if value > option.most:
        raise BadValue(f"a whole number of at most {option.most}")
    return value


def _truth(option: Option, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadValue("true or false")
    return value


def _text(option: Option, value: Any) -> str:
    if not isinstance(value, (str, Path)):
        raise BadValue("a text")
    text = str(value)
    # a lone low surrogate stands for a byte of a file name that is no UTF-8
    if "\0" in text or any("\ud800" <= letter <= "\udbff" for letter in text):
        raise BadValue("a text without null bytes and lone surrogates")
    return text


def _seconds(option: Option, value: Any) -> float:
    """60, "60", "60s" and "2m" as seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m)?\s*", str(value))
    if match is None:  # True and False do not match either
        raise BadValue("a number of seconds, such as 60, 60s or 2m")
    seconds = float(match[1]) * (60.0 if match[2] == "m" else 1.0)
    if seconds > _LONGEST or (option.above_zero and not seconds):
        raise BadValue(f"{'above 0 and ' if option.above_zero else ''}at most {_LONGEST:g} seconds")
    return seconds


def _rules(option: Option, value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise BadValue("a list of rule codes or names, such as ND301, ND2 or log-of-zero")
    return tuple(item.strip() for item in items if item.strip())


def _steps(option: Option, value: Any) -> tuple[int, ...]:
    items = (
        value.split(",") if isinstance(value, str) else [value] if isinstance(value, int) else value
    )
    try:
        steps = tuple(int(item) for item in items)
    except (TypeError, ValueError) as error:
        raise BadValue("a list of step numbers, such as 3,7") from error
    if any(not 0 <= step <= option.most for step in steps):
        raise BadValue(f"a list of step numbers counted from 0, at most {option.most}")
    return steps


def _numbers(option: Option, value: Any) -> dict[str, float]:
    """A mapping of names to numbers, or a list of NAME=VALUE."""
    if isinstance(value, (list, tuple)):
        pairs = [str(item).partition("=") for item in value]
        value = {name.strip(): number.strip() for name, _, number in pairs}
    if not isinstance(value, Mapping):
        raise BadValue("a mapping of names to numbers, such as dead-units.share: 0.7")
    try:
        numbers = {str(name): float(number) for name, number in value.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise BadValue("NAME=VALUE with a number, such as dead-units.share=0.7") from error
    if not all(0 <= number < math.inf for number in numbers.values()):
        raise BadValue("NAME=VALUE with a finite number of at least 0")
    return numbers


def _mapping(option: Option, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadValue("a mapping that build(config) is given")
    return value


def _files(option: Option, value: Any) -> dict[str, str]:
    """A mapping of the option's choices to files."""
    wanted = "a mapping of formats to files, such as html: report.html; formats are "
    if not isinstance(value, Mapping) or not set(value) <= set(option.choices):
        raise BadValue(wanted + ", ".join(option.choices))
    return {str(form): _text(option, file) for form, file in value.items()}


_ALLOWED_KEYS = ("rule", "file", "module", "parameter", "reason")


def _allowed(option: Option, value: Any) -> tuple[Mapping[str, str], ...]:
    """A list of rules, or of mappings with a rule and what else a finding must match."""
    wanted = (
        "a list of rules, or of mappings such as {rule: ND603, file: model.py, reason: ...} with "
        f"the keys {', '.join(_ALLOWED_KEYS)}"
    )
    rows = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for row in rows:
        told = {"rule": row} if isinstance(row, str) else row
        if not isinstance(told, Mapping) or not set(told) <= set(_ALLOWED_KEYS):
            raise BadValue(wanted)
        if not told.get("rule") or not all(isinstance(text, str) for text in told.values()):
            raise BadValue(wanted)
        found.append({str(key): text for key, text in told.items()})
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Kind:
    """Values of one type: in words, as the command line takes them, and how they are read."""

    words: str
    flag: Any
    read: Callable[[Option, Any], Any]
    metavar: str = ""
    """What the help calls such a value."""


KINDS: Mapping[Any, Kind] = {
    int: Kind("whole number", int, _whole, "N"),
    bool: Kind("true or false", bool, _truth),
    str: Kind("text", str, _text, "TEXT"),
    float: Kind("time, such as 60s or 2m", str, _seconds, "TIME"),
    tuple[str, ...]: Kind("list of rules", str, _rules, "RULES"),
    tuple[int, ...]: Kind("list of steps", str, _steps, "STEPS"),
    Mapping[str, float]: Kind("mapping of names to numbers", list[str], _numbers, "NAME=VALUE"),
    Mapping[str, str]: Kind("mapping of formats to files", list[str], _files),
    Mapping[str, Any]: Kind("mapping", None, _mapping),
    tuple[Mapping[str, str], ...]: Kind("list of rules", None, _allowed),
}
"""By the annotation of the field."""
