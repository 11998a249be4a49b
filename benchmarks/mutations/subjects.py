"""The scripts that are mutated, from `scripts.yaml`, and how they are laid out for a run."""

from __future__ import annotations

import hashlib
import re
import shutil
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from benchmarks import realcode, realcode_data
from benchmarks.mutations.kept import digest

_HELD_OUT = r"held-out [\w ]+:? (\S+)\s*$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A script with its held-out metric."""

    script: realcode.Script
    files: tuple[str, ...]
    """Those that may be mutated, beside the folder of the command."""
    metric: str = _HELD_OUT
    """A pattern over the output; the last match counts. Empty: only exceptions count."""
    better: str = "higher"
    spared: tuple[str, ...] = ()
    """Patterns of first lines of statements that measure the metric."""
    warm: tuple[str, ...] = field(default=())
    """What it imports besides torch; its plain runs find it imported already."""

    @property
    def name(self) -> str:
        return self.script.name

    @property
    def sealed(self) -> bool:
        """Nobody reads the reports of its mutants."""
        return is_sealed(self.name)

    @property
    def missing(self) -> list[str]:
        """The packages of those that are not installed."""
        packages = {module.split(".")[0] for module in self.warm}
        return sorted(name for name in packages if find_spec(name) is None)

    def measured(self, out: str) -> float | None:
        """The metric that was printed last."""
        found = re.findall(self.metric, out, re.MULTILINE) if self.metric else []
        try:
            return float(found[-1]) if found else None
        except ValueError:
            return None


def is_sealed(name: str) -> bool:
    """By the name alone, so that nobody chooses."""
    return hashlib.sha256(name.encode()).digest()[-1] % 2 == 1


def subjects() -> list[Subject]:
    """All of them."""
    known = {script.name: script for script in realcode.scripts()}
    text = Path(__file__).with_name("scripts.yaml").read_text(encoding="utf-8")
    return [_subject(dict(entry), known) for entry in yaml.safe_load(text)]


def _subject(entry: dict[str, Any], known: dict[str, realcode.Script]) -> Subject:
    name = entry.pop("name")
    script = known.get(name)
    if script is None:
        command = entry.pop("command", f"{name}.py")
        script = realcode.Script(name=name, folder="mutations", command=command)
    changed = {key: entry.pop(key) for key in ("command", "steps") if key in entry}
    script = replace(script, **changed)
    spared, warm = (tuple(entry.pop(key, ())) for key in ("spared", "warm"))
    files = tuple(entry.pop("files", (script.command.split()[0],)))
    return Subject(script=script, files=files, spared=spared, warm=warm, **entry)


class Layouts:
    """Copies of checkouts with their data, made once."""

    def __init__(self, checkouts: Path, cache: Path) -> None:
        self._checkouts, self._cache = checkouts, cache

    def lacks(self, subject: Subject) -> str:
        """Why the script cannot be run; empty where it can."""
        if not self._path(subject, subject.files[0]).is_file():
            return "it is not in the checkout"
        return f"{', '.join(subject.missing)} is not installed" if subject.missing else ""

    def source(self, subject: Subject, file: str) -> str:
        """The text of one of its files."""
        return self._path(subject, file).read_text(encoding="utf-8")

    def _path(self, subject: Subject, file: str) -> Path:
        folder = subject.script.folder.removeprefix(subject.script.top).lstrip("/")
        return subject.script.within(self._checkouts) / folder / file

    def into(self, copy: Path, subject: Subject, changed: dict[str, str]) -> None:
        """Lays the script out below `copy`, with the texts of some files changed."""
        script = subject.script
        made = self._made(script)
        shutil.copytree(made, copy / script.top, ignore=_only(script))
        for file, text in changed.items():
            (copy / script.folder / file).write_text(text, encoding="utf-8")

    def data(self, script: realcode.Script) -> str:
        """The digest of how its data are made; empty where it makes them itself."""
        if script.within(self._checkouts).parent != self._checkouts:
            return ""
        return digest(Path(realcode_data.__file__).read_text("utf-8"))

    def _made(self, script: realcode.Script) -> Path:
        """The checkout with its data. Scripts of this repository make theirs themselves."""
        if not self.data(script):
            return script.within(self._checkouts)
        folder = self._cache / "laid_out" / self.data(script)
        if not (folder / script.top).exists():
            realcode.laid_out(script, self._checkouts, folder, plant=False)
        return folder / script.top


def _only(script: realcode.Script) -> Any:
    """For copytree: of a checkout of many scripts, this one's folder and the shared data."""
    parts = script.folder.split("/")

    def ignore(folder: str, names: list[str]) -> list[str]:
        if len(parts) > 1 and Path(folder).name == script.top:
            return [name for name in names if name not in (parts[1], "data")]
        return [name for name in names if name in ("__pycache__", ".git")]

    return ignore


@dataclass(frozen=True, slots=True)
class Mutant:
    """One line of `mutants.json`."""

    script: str
    file: str
    operator: str
    kind: str
    site: int
    """The how manieth site of the operator in the file, from 0."""
    line: int
    outcome: str
    """`worse`, `nan` or `exception`: what plain Python observed."""
    healthy: float | None
    spread: float | None
    metric: float | None
    exception: str
    text: str
    """The digest of the mutated file."""

    @property
    def name(self) -> str:
        return f"{self.operator} {self.file}:{self.line} ({self.site})"
