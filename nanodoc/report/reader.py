"""The JSON report read back, to be shown. It may come from a stranger: every value is checked
against the type it has in a report, and nothing of it is executed."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nanodoc.diagnosis.finding import Check, Finding
from nanodoc.errors import UsageError
from nanodoc.facts.collectives import collectives_of
from nanodoc.facts.frames import Magnitude
from nanodoc.facts.learning import Learning
from nanodoc.facts.ranks import RankOutcome
from nanodoc.facts.snapshot import SnapshotFacts
from nanodoc.report.report import (
    SCHEMA,
    Accepted,
    GradGraph,
    GradParameter,
    Report,
    RunInfo,
    UnusedIgnore,
    VitalSigns,
)

_LARGEST = 256 * 2**20  # bytes
_MOST = 2**63
_PLACES = ("line", "end_line", "column", "end_column", "indent")
_MOST_PLACES = 10**6  # lines of a file
_MOST_COLUMNS = 1000
_WORD = re.compile(r"[A-Za-z0-9][\w.-]{0,99}", re.ASCII)
_LONGEST = 20_000  # letters of one text
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_Class = TypeVar("_Class")


def read_report(path: Path) -> Report:
    """The report in a JSON file. Raises `UsageError`."""
    if not path.is_file():
        raise UsageError(f"no such report: {path}")
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise UsageError(f"{path} has {size / 2**20:.0f} MiB, but the limit is 256 MiB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a JSON report: {str(error)[:100]}") from error
    if not isinstance(content, dict) or "nanodoc" not in content or "run" not in content:
        raise UsageError(f"{path} is not a nanodoc report; --output-format json writes one")
    if content.get("schema") not in (1, SCHEMA):  # the first called `NOTHING` "healthy"
        raise UsageError(
            f"{path} has schema {str(content.get('schema'))[:20]}, but this nanodoc reads {SCHEMA}"
        )
    try:
        return _report(content)
    except (ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"{path} is not a valid nanodoc report: {error}") from error


def _report(content: Mapping[str, Any]) -> Report:
    vitals = _table(content, "vitals")
    ends = (vitals.get("loss_first"), vitals.get("loss_last"))
    losses = tuple(_value(float, loss, "loss") for loss in ends if loss is not None)
    known = {field.name for field in fields(VitalSigns)} & vitals.keys()
    course = _built(VitalSigns, {name: vitals[name] for name in known}, "course")
    graph = content.get("graph")
    return Report(
        nanodoc=_value(str, content["nanodoc"], "nanodoc"),
        run=_built(RunInfo, _table(content, "run"), "run"),
        findings=tuple(_finding(row) for row in _rows(content, "findings")),
        checked=_value(tuple[str, ...], content.get("checked", []), "checked"),
        not_checked=tuple(
            (_value(str, row.get("what"), "what"), _value(str, row.get("why"), "why"))
            for row in _rows(content, "not_checked")
        ),
        vitals=replace(course, losses=losses),
        artifacts=_value(Mapping[str, str | None], content.get("artifacts") or {}, "artifacts"),
        interrupted=_value(bool, content.get("interrupted", False), "interrupted"),
        preflight=tuple(_built(Check, row, "preflight") for row in _rows(content, "preflight")),
        learning=_built(Learning, content["learning"], "learning")
        if isinstance(content.get("learning"), dict)
        else None,
        graph=_graph(graph) if isinstance(graph, dict) else None,
        ranks=tuple(_rank(row) for row in _rows(content, "ranks")),
        magnitudes=tuple(
            _built(Magnitude, row, "magnitudes") for row in _rows(content, "magnitudes")
        ),
        snapshot=_built(SnapshotFacts, content["snapshot"], "snapshot")
        if isinstance(content.get("snapshot"), dict)
        else None,
        accepted=tuple(_accepted(row) for row in _rows(content, "accepted")),
        unused_ignores=tuple(
            _built(UnusedIgnore, row, "unused_ignores") for row in _rows(content, "unused_ignores")
        ),
    )


def _accepted(row: Mapping[str, Any]) -> Accepted:
    told = {key: value for key, value in row.items() if key != "finding"}
    kinds = get_type_hints(Accepted)
    values = {key: _value(kinds[key], told.get(key), key) for key in ("by", "place", "reason")}
    return Accepted(finding=_finding(_table(row, "finding")), **values)


def _rank(row: Mapping[str, Any]) -> RankOutcome:
    """Its places are texts in the report, and are left out."""
    apart = ("location", "stack", "collectives")
    told = {key: value for key, value in row.items() if key not in apart and value is not None}
    collectives = collectives_of(_rows(row, "collectives"))
    return replace(_built(RankOutcome, told, "rank"), collectives=collectives)


def _finding(row: Mapping[str, Any]) -> Finding:
    pairs = {
        "evidence": [[one.get("label"), one.get("value")] for one in _rows(row, "evidence")],
        "effects": [[one.get("what"), one.get("step")] for one in _rows(row, "effects")],
    }
    told = {key: value for key, value in row.items() if key != "fingerprint"}
    finding = _built(Finding, told | pairs, "finding")
    if not all(_WORD.fullmatch(word) for word in (finding.code, finding.name)):
        raise ValueError("a finding has an invalid code or name")  # they are printed as they are
    return finding


def _graph(content: Mapping[str, Any]) -> GradGraph:
    rows = _rows(content, "parameters")
    parameters = []
    for row in rows:
        told = {k: v for k, v in row.items() if k != "state"}
        numel = math.prod(_value(tuple[int, ...], row.get("shape"), "shape"))
        parameters.append(_built(GradParameter, told | {"numel": numel}, "parameter"))
    return GradGraph(
        steps=_value(int, content.get("steps"), "steps"),
        has_optimizer=any(parameter.optimizers for parameter in parameters),
        parameters=tuple(parameters),
        modules=_value(Mapping[str, str], content.get("modules"), "modules"),
    )


def _table(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key!r} is not a table")
    return value


def _rows(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = content.get(key) or []
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"{key!r} is not a list of tables")
    return value


def _built(kind: type[_Class], content: Mapping[str, Any], name: str) -> _Class:
    """A dataclass from a table; keys that it does not have are left out, since later versions may
    write more."""
    hints = get_type_hints(kind)
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]  # dataclasses, all of them
        if field.name in content:
            values[field.name] = _value(hints[field.name], content[field.name], field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"a {name} has no {field.name!r}")
    return kind(**values)


def _value(kind: Any, value: Any, name: str) -> Any:
    """`value` as what `kind` says. Raises `ValueError`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return _plain(value, name)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (inner, *_) = [argument for argument in arguments if argument is not type(None)]
        return _value(inner, value, name)
    if origin is tuple:
        items = _value(list, value, name)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(_value(arguments[0], item, name) for item in items)
        if len(items) != len(arguments):
            raise ValueError(f"{name!r} has {len(items)} parts")
        return tuple(_value(k, item, name) for k, item in zip(arguments, items, strict=True))
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {
            _value(str, key, name): _value(arguments[1], item, name)
            for key, item in _value(dict, value, name).items()
        }
    if is_dataclass(kind):
        return _built(kind, _value(dict, value, name), name)  # type: ignore[arg-type]  # a class
    return _single(kind, value, name)


def _single(kind: Any, value: Any, name: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name!r} is {str(value)[:40]!r}")
        return value
    if kind is float and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{name!r} is a {type(value).__name__}")
    most = _MOST_COLUMNS if name == "indent" else _MOST_PLACES if name in _PLACES else _MOST
    if kind is int and not -most < value < most:
        raise ValueError(f"{name!r} is out of range")
    if isinstance(value, str) and len(value) > _LONGEST:
        raise ValueError(f"{name!r} has {len(value)} characters")
    return value


def _plain(value: Any, name: str) -> Any:
    """What JSON holds; lists as tuples, so that a report stays frozen."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_plain(item, name) for item in value)
    return value
