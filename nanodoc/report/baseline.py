"""The baseline: a file of findings that are known, so that later runs fail only on what is new."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from nanodoc.artifacts import make_folder
from nanodoc.diagnosis.finding import Finding
from nanodoc.errors import UsageError
from nanodoc.report.secrets import hidden
from nanodoc.strict_json import written
from nanodoc.text import clean

DEFAULT = "nanodoc-baseline.json"
_VERSION = 1
_LARGEST = 16 * 2**20  # bytes


class Known(NamedTuple):
    """What a finding is known by: its fingerprint, which does not change when lines shift, and the
    name of its file, since two files may hold the same line."""

    fingerprint: str
    file: str


def known_as(finding: Finding) -> Known:
    """What the finding would be in a baseline."""
    where = finding.culprit.location
    return Known(finding.fingerprint, Path(where.file).name if where is not None else "")


def read_baseline(path: Path) -> tuple[Known, ...]:
    """The findings in a baseline; a finding that was there twice is there twice. Raises
    `UsageError`."""
    try:
        if not path.is_file():
            raise UsageError(f"no such baseline: {path}; --write-baseline {path} creates it")
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"the baseline {path} is larger than {_LARGEST >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a baseline: {str(error)[:100]}") from error
    rows = content.get("findings") if isinstance(content, dict) else None
    if not isinstance(rows, list) or "baseline" not in content or "nanodoc" not in content:
        raise UsageError(f"{path} is not a nanodoc baseline; --write-baseline creates one")
    if content["baseline"] != _VERSION:
        raise UsageError(
            f"{path} has version {str(content['baseline'])[:20]}, but this nanodoc reads {_VERSION}"
        )
    known = []
    for row in rows:
        told = row if isinstance(row, dict) else {}
        fingerprint, file = told.get("fingerprint"), told.get("file")
        if not isinstance(fingerprint, str) or not isinstance(file, str):
            raise UsageError(f"{path}: a finding has no fingerprint or no file")
        known.append(Known(fingerprint, file))
    return tuple(known)


def check_baseline_file(path: Path) -> None:
    """Raises `UsageError` where writing a baseline would take the place of another file."""
    try:
        if not path.exists() and not path.is_symlink():
            return
        read_baseline(path)
    except OSError as error:
        raise UsageError(f"--write-baseline {path}: {error.strerror or error}") from error
    except UsageError as error:
        raise UsageError(
            f"--write-baseline {path}: this file exists and is not a nanodoc baseline; choose "
            "a different name"
        ) from error


def baseline_text(findings: Iterable[Finding], version: str) -> str:
    """The baseline that accepts `findings`."""
    rows = [
        {
            **known_as(finding)._asdict(),
            "code": finding.code,
            "name": finding.name,
            "title": hidden(clean(finding.title)),
        }
        for finding in findings
    ]
    return written({"baseline": _VERSION, "nanodoc": version, "findings": rows}) + "\n"


def write_baseline(path: Path, findings: Iterable[Finding], version: str) -> None:
    """Writes the baseline that accepts `findings`, in the place of the one that was there. Raises
    `OSError`."""
    make_folder(path.parent)
    made = path.with_name(f".{path.name}.{os.getpid()}")
    with made.open("x", encoding="utf-8", errors="backslashreplace") as file:
        file.write(baseline_text(findings, version))
    os.replace(made, path)
