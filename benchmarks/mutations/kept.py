"""What runs gave, kept in files, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def digest(*parts: object) -> str:
    """A name for what these parts, in this order, decide."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


def package_digest() -> str:
    """The content of nanodoc's package: another package may report something else."""
    files = sorted((ROOT / "nanodoc").rglob("*.py"))
    return digest(*(f"{file.relative_to(ROOT)}\0{file.read_text('utf-8')}" for file in files))


def default_cache() -> Path:
    """The folder where nothing else is given."""
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(user).expanduser() / "nanodoc-mutations"


class Kept:
    """JSON values by name, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str) -> Any | None:
        """The value, None where there is none."""
        file = self._folder / f"{name}.json"
        return json.loads(file.read_text("utf-8")) if file.exists() else None

    def put(self, name: str, value: Any) -> None:
        """Keeps the value. Whoever reads meanwhile sees all of it or nothing."""
        beside = self._folder / f"{name}.{os.getpid()}.part"
        beside.write_text(json.dumps(value), "utf-8")
        beside.replace(self._folder / f"{name}.json")
