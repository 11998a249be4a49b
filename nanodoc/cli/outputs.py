"""--output: which reports go to which files, in which form, and files that a report must not
replace."""

from __future__ import annotations

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from nanodoc.artifacts import new_at_root
from nanodoc.config import FORMATS, OPTIONS, Config
from nanodoc.errors import UsageError

_ENDS = 400  # bytes
_REPORTS = (b"nanodoc ", b"nanodoc: ", b"::", b"digraph nanodoc ")
"""How a report begins; a concise one has its verdict at the end, JSON its version near the head."""
_MARKS = (
    *(b'<meta name="generator" content="nanodoc">', b'<testsuites name="nanodoc"'),
    *(b'"name": "nanodoc"', b"<!-- nanodoc report -->", b'"check_name": "nanodoc '),
)
_BY_SUFFIX = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".sarif": "sarif",
    ".md": "markdown",
    ".xml": "junit",
}
"""The form of the report in a file with that suffix."""


def outputs_of(told: Any) -> dict[str, Any]:
    """`output`, the one without a format, and `also`, the others. Raises `UsageError`."""
    files = [str(one) for one in (told if isinstance(told, list) else [told])]
    for file in files:
        form, equals, _ = file.partition("=")
        if equals and form.isidentifier() and form not in FORMATS:
            near = get_close_matches(form, FORMATS, 1)
            raise UsageError(
                f"--output {file}: there is no format {form!r}"
                + (f"; did you mean {near[0]}?" if near else f"; there are {listed(FORMATS)}")
                + f" (for a file of that name write ./{file})"
            )
    plain = [file for file in files if file.partition("=")[0] not in FORMATS or "=" not in file]
    pairs = [file.split("=", 1) for file in files if file not in plain]
    also: dict[str, str] = dict(pairs)
    if len(also) < len(pairs):
        raise UsageError("--output gives two files for one format; a run writes one of each")
    if len(plain) > 1:
        raise UsageError(
            f"--output {plain[1]}: a second report needs its format, such as html={plain[1]}"
        )
    if not all(also.values()):
        raise UsageError("--output FORMAT=FILE needs a file after the =")
    return ({"output": plain[0]} if plain else {}) | ({"also": also} if also else {})


def form_of(config: Config) -> str:
    """The form of the report by the suffix of its file; the configured one where there is none."""
    return _BY_SUFFIX.get(Path(config.output or "").suffix.lower(), config.output_format)


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a sentence lists them."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def check_output(config: Config) -> None:
    """Raises `UsageError` where the report would take the place of a file that is no report, or
    where a folder would have to be made at the root of the disk."""
    for file in (config.output, *config.also.values()):
        if file is not None:
            _check_replaced(Path(file))
            _check_folder("--output", Path(file), Path(file).parent)
    for name in ("snapshot_dir", "tensorboard"):
        folder = getattr(config, name)
        if folder is not None:
            _check_folder(OPTIONS[name].flag, Path(folder), Path(folder))


def _check_folder(flag: str, path: Path, folder: Path) -> None:
    missing = new_at_root(folder)
    if missing is not None:
        raise UsageError(f"{flag} {path}: there is no folder {missing}; make it, or choose another")


def _check_replaced(path: Path) -> None:
    try:
        if not path.is_file() or not path.stat().st_size:
            return
        with path.open("rb") as file:
            head = file.read(_ENDS)
            file.seek(-min(_ENDS, path.stat().st_size), os.SEEK_END)
            tail = file.read(_ENDS)
    except OSError:  # what is wrong with it is told when the report is written
        return
    verdict = head.startswith(b"verdict: ") or b"\nverdict: " in tail
    verdict = verdict or head == b"[]\n" or any(mark in head for mark in _MARKS)
    if not verdict and not head.startswith(_REPORTS) and b'"nanodoc":' not in head:
        raise UsageError(
            f"--output {path}: this file exists and is not a nanodoc report; choose another name"
        )
