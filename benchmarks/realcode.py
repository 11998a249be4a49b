"""Runs unmodified public training scripts bare and under nanodoc, and compares them.

`scripts/realcode FOLDER`: a folder of checkouts, `examples` (pytorch/examples) and `nanoGPT`
(karpathy/nanoGPT). They are copied into a temporary folder together with small data made here;
nothing of theirs is changed but for `--plant`, which puts a NaN into a layer's forward pass. The
scripts of libraries lie beside this file (`realcode_libraries`) and need what they import. For
each script: where its step was found, whether its first step, run again, was bitwise the same,
whether its output and the final weights and buffers are those of the bare run, and what was found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.realcode_data import make_data

_TIMES = re.compile(
    r"(?:Time|Data)\s+\d+\.\d+ \(\s*\d+\.\d+\)|\(?\d+\.\d+ ?m?s\)?|\d+\.\d+ ?ms|time \S+|"
    r"ms/batch +\S+|mfu \S+%|\d\d:\d\d:\d\d|elapsed.*|"
    r"'(?:train|eval)_(?:runtime|samples_per_second|steps_per_second)': '[\d.e+]+'"
)


_BESIDE = Path(__file__).resolve().parent / "realcode_site"
_OURS = {
    "libraries": Path(__file__).resolve().parent / "realcode_libraries",
    "mutations": Path(__file__).resolve().parent / "mutations" / "scripts",
}
"""Scripts that lie in this repository instead of in a checkout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """One script of `realcode.yaml`."""

    name: str
    folder: str
    command: str
    steps: int = 0
    """It is ended after so many optimizer steps; 0: it runs to its end."""
    seeded: bool = True
    """Two runs of it are the same."""
    plant: tuple[str, ...] = ()
    """(file, text of a line, statement put behind it) that plants a NaN."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def top(self) -> str:
        """The checkout that it is of, or a name in `_OURS`."""
        return self.folder.split("/")[0]

    def within(self, checkouts: Path) -> Path:
        """Where its checkout lies."""
        return _OURS.get(self.top, checkouts / self.top)

    def is_there(self, checkouts: Path) -> bool:
        """Its folder is in the checkout."""
        return (self.within(checkouts) / self.folder.removeprefix(self.top).lstrip("/")).is_dir()


def scripts() -> list[Script]:
    """All of them."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return [Script(**entry) for entry in yaml.safe_load(text)]


@dataclass(slots=True)
class Run:
    """How a script ended."""

    status: int
    out: str
    weights: str
    seconds: float
    report: dict[str, Any] | None = None
    errors: str = ""


def run(script: Script, copy: Path, *, watched: bool) -> Run:
    """The script in the checkout copied to `copy`, bare or watched."""
    with tempfile.TemporaryDirectory() as beside:
        sums, report = Path(beside) / "sums", Path(beside) / "report.json"
        variables = {**os.environ, **script.environment, **environment(script, sums)}
        options = ["--output-format", "json", "--output", str(report), "--fail-on", "never"]
        options += ["--snapshot-dir", str(copy.parent / "kept")]
        tool = ["-m", "nanodoc", "run", *options] if watched else []
        first, *own = script.command.split()
        command = [first, *(["--"] if watched else []), *own]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *tool, *command],
            cwd=copy / script.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=600,
        )
        seconds = time.monotonic() - began
        return Run(
            status=done.returncode,
            out="\n".join([_TIMES.sub("…", done.stdout), *_files(copy)]),
            weights=sums.read_text() if sums.exists() else "",
            seconds=seconds,
            report=json.loads(report.read_text()) if report.exists() else None,
            errors=done.stderr,
        )


_REPLAY = (sys.executable, "-m", "nanodoc", "replay")


def replayed(script: Script, copy: Path, seen: Run) -> str | None:
    """What `nanodoc replay` of the run's snapshot says: whether it was bitwise the same and named
    the same line, or why it could not be done."""
    if seen.report is None or not seen.report["artifacts"].get("snapshot"):
        return None
    with tempfile.TemporaryDirectory() as beside:
        file = Path(beside) / "report.json"
        before = _contents(copy)
        options = ["--output-format", "json", "--output", str(file), "--fail-on", "never"]
        done = subprocess.run(
            [*_REPLAY, seen.report["artifacts"]["snapshot"], *options],
            cwd=copy / script.folder,
            env={**os.environ, **script.environment, **environment(script, Path(beside) / "sums")},
            capture_output=True,
            text=True,
            timeout=600,
        )
        if not file.exists():
            return done.stderr.strip()[-300:]
        report = json.loads(file.read_text())
    first, then = (
        [location(finding).get("line") for finding in found["findings"][:1]]
        for found in (seen.report, report)
    )
    same = "the same line" if first == then else "another line"
    wrote = "" if _contents(copy) == before else ", files written"
    return f"{report['run']['reproduced']}, {same}{wrote}"


def _contents(folder: Path) -> dict[str, int]:
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("*") if p.is_file()}


def environment(script: Script, sums: Path) -> dict[str, str]:
    """What a run of it needs besides the variables of this process."""
    root = Path(__file__).resolve().parent.parent
    return {
        "PYTHONPATH": os.pathsep.join([str(_BESIDE), str(root)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "REALCODE_HASH": str(sums),
        "REALCODE_STEPS": str(script.steps),
        "OMP_NUM_THREADS": "1",
    }


def examine(script: Script, checkouts: Path, *, plant: bool) -> dict[str, Any]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        # the same path for both: some print it
        copy = Path(scratch) / "same"
        line = laid_out(script, checkouts, copy, plant=plant)
        bare = None if plant else run(script, copy, watched=False)
        if not plant:
            shutil.rmtree(copy)
            laid_out(script, checkouts, copy, plant=False)
        seen = run(script, copy, watched=True)
        again = replayed(script, copy, seen) if plant else None
    report = seen.report or {"run": {}, "findings": [], "verdict": None}
    row: dict[str, Any] = {
        "script": script.name,
        "step": report["run"].get("step_found", ""),
        "steps": report["run"].get("steps_run"),
        "verdict": report["verdict"],
        "findings": [_told(finding) for finding in report["findings"]],
        "status": seen.status,
    }
    if bare is None:
        where = next((location(finding) for finding in report["findings"]), {})
        row["planted"] = line
        row["found"] = where.get("line") == line and where["file"].endswith(script.plant[0])
        row["replayed"] = again
    else:
        row["same output"] = bare.out == seen.out if script.seeded else None
        row["same weights"] = bare.weights == seen.weights if script.seeded else None
        row["same status"] = bare.status == seen.status
        row["seconds"] = (round(bare.seconds, 1), round(seen.seconds, 1))
    if seen.report is None:
        row["errors"] = seen.errors[-600:]
    return row


def laid_out(script: Script, checkouts: Path, copy: Path, *, plant: bool) -> int:
    """Copies the checkout and makes its data; the line of the NaN, where one is planted."""
    within = script.within(checkouts)
    shutil.copytree(within, copy / script.top, ignore=shutil.ignore_patterns(".git"))
    make_data(copy)
    return _planted(script, copy / script.folder) if plant else 0


def _files(folder: Path) -> list[str]:
    """What lies below the folder, besides nanodoc's own and compiled files."""
    ours = ("history.jsonl",)
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and path.name not in ours
        and not path.name.startswith("nanodoc-")
    )


def _told(finding: dict[str, Any]) -> str:
    place = location(finding)
    return f"{finding['code']} {place.get('file', '')}:{place.get('line', '')}"


def location(finding: dict[str, Any]) -> dict[str, Any]:
    place: dict[str, Any] = (finding.get("culprit") or {}).get("location") or {}
    return place


def _planted(script: Script, folder: Path) -> int:
    """Puts the NaN into the script; the number of its line."""
    file, text, statement = script.plant
    path = folder / file
    lines = path.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().split("#")[0].strip() == text)
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(at + 1, indent + statement)
    path.write_text("\n".join(lines) + "\n")
    return at + 2


def main() -> None:
    """Entry point of `scripts/realcode`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--plant", action="store_true")
    given = parser.parse_args()
    for script in scripts():
        if given.only and not any(word in script.name for word in given.only.split(",")):
            continue
        if not script.is_there(given.folder) or (given.plant and not script.plant):
            continue
        try:
            row = examine(script, given.folder, plant=given.plant)
        except (subprocess.TimeoutExpired, StopIteration) as error:
            row = {"script": script.name, "errors": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(row), flush=True)
