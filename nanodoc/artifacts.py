"""The folder for what a run leaves: snapshots, traces, the history."""

from __future__ import annotations

import errno
import os
from pathlib import Path

ARTIFACTS = "nanodoc-out"
"""Its usual name, in the working folder."""


def make_folder(path: Path) -> Path:
    """Makes a folder and those above it; one of the usual name gets a .gitignore, which keeps it
    out of version control. Raises `OSError`, also where it would be a new folder at the root of
    the disk."""
    if path.is_dir():
        return path
    missing = new_at_root(path)
    if missing is not None:
        raise FileNotFoundError(errno.ENOENT, f"there is no folder {missing}", str(missing))
    path.mkdir(parents=True, exist_ok=True)
    if path.name == ARTIFACTS:
        (path / ".gitignore").write_text("# made by nanodoc\n*\n", encoding="utf-8")
    return path


def new_at_root(path: Path) -> Path | None:
    """The folder at the root of the disk that does not exist and that `path` would need; None where
    there is none such."""
    whole = path.absolute()
    for folder in (whole, *whole.parents):
        if folder.parent == folder.parent.parent and folder != folder.parent:
            return None if os.path.lexists(folder) else folder
    return None
