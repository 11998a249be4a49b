"""Whose code a file holds: the user's, a library's, torch's or nanodoc's own. Nothing here imports
torch: the process that only watches a training reads dead tracebacks too."""

from __future__ import annotations

import importlib.util
import linecache
import os
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import is_looked_through

_torch = importlib.util.find_spec("torch")  # found, not imported
# What a frame's file means for the search of the user's line.
SKIP, USER, LIBRARY, STOP = range(4)

_TORCH = (
    os.path.dirname(os.path.abspath(_torch.origin)) + os.sep
    if _torch is not None and _torch.origin
    else "<no torch>"
)
_NANODOC = str(Path(__file__).resolve().parent.parent) + os.sep
# patients stand for the user's code
_CLINIC = os.path.join(_NANODOC, "clinic", "patients") + os.sep
_STDLIB = tuple(
    {os.path.abspath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")}
)

# file name -> kind; a pure function of the name, so it may live as long as the process
_kinds: dict[str, int] = {}


def frame_kind(filename: str) -> int:
    """`USER`, `LIBRARY` (installed packages), `SKIP` (torch, the standard library, generated code)
    or `STOP` (nanodoc)."""
    kind = _kinds.get(filename)
    if kind is None:
        kind = _classify(filename)
        if (
            kind != STOP
        ):  # a file of nanodoc's may still be registered as one that is looked through
            _kinds[filename] = kind
    return kind


def is_ours(filename: str) -> bool:
    """It is a file of nanodoc's own, and none that stands for a user's."""
    return filename.startswith(_NANODOC) and not filename.startswith(_CLINIC)


def _classify(filename: str) -> int:
    if filename.startswith("<") and not filename.startswith("<ipython"):
        return SKIP
    if filename.startswith(_NANODOC):
        if filename.startswith(_CLINIC):
            return USER
        return SKIP if is_looked_through(filename) else STOP
    if filename.startswith(_TORCH):
        return SKIP
    if f"{os.sep}site-packages{os.sep}" in filename or f"{os.sep}dist-packages{os.sep}" in filename:
        return LIBRARY
    return SKIP if filename.startswith(_STDLIB) else USER


def torch_file(filename: str) -> str:
    """`nn/functional.py` for that file of torch's; "" for any other code."""
    return filename.removeprefix(_TORCH).replace(os.sep, "/") if filename.startswith(_TORCH) else ""


def absolute(filename: str) -> str:
    """As `os.path.abspath`; the name as it is where the working folder is gone."""
    try:
        return os.path.abspath(filename)
    except OSError:
        return filename


def shown_path(filename: str) -> str:
    """`filename` relative to the working folder when it lies inside it, else absolute; of a
    notebook's cell its name there, as `In[3]`."""
    cell = _cell(filename)
    if cell:
        return cell
    try:
        return _shown_from(filename, os.getcwd())
    except OSError:  # the folder is gone
        return filename


@lru_cache(maxsize=4096)
def _shown_from(filename: str, folder: str) -> str:
    path = Path(filename)
    try:
        return str(path.resolve().relative_to(folder))
    except (ValueError, OSError):
        return str(path)


def short_path(filename: str) -> str:
    """As `shown_path`; of an installed package's file from the package on."""
    _, found, inside = filename.rpartition(f"{os.sep}site-packages{os.sep}")
    return inside.replace(os.sep, "/") if found else shown_path(filename)


def _cell(filename: str) -> str:
    """The name that IPython has for a cell's code; "" for any other file."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    naming = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = naming(filename) if naming is not None else None
    return str(named[1]) if named is not None else ""


def line_span(file: str, line: int, function: str, code: str | None = None) -> SourceSpan:
    """The whole of one line as a span, where no more than its number is known. `code` where the
    file need not be read."""
    raw = code if code is not None else linecache.getline(file, line).rstrip("\n")
    text = raw.strip()
    indent = len(raw) - len(raw.lstrip())
    return SourceSpan(
        file=shown_path(file),
        line=line,
        end_line=line,
        column=1 + indent,
        end_column=1 + indent + len(text),
        function=function,
        code=text,
        indent=indent,
    )
