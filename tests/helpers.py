"""What several tests do: run an engine on a recipe, or the command line in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.ranking import rank
from nanodoc.loop.engine import Engine
from nanodoc.loop.outcome import Outcome
from nanodoc.rules.catalogue import claims
from tests.warm import PYTHON, Warm


def run_engine(recipe: Recipe, steps: int = 1, **options: Any) -> Outcome:
    """The outcome of a few steps on the CPU, without files."""
    return Engine(
        recipe, torch.device("cpu"), options.pop("amp_dtype", None), steps=steps, **options
    ).run()


def diagnose(recipe: Recipe, steps: int = 1, **options: Any) -> tuple[Finding, ...]:
    """The ranked findings of a few steps on the CPU."""
    return rank(claims(run_engine(recipe, steps, **options).evidence))


def line_of(file: str | Path, text: str) -> int:
    """The number of the one line of `file` that contains `text`."""
    numbers = [
        n
        for n, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1)
        if text in line and "line_of(" not in line
    ]
    assert len(numbers) == 1, f"{text!r} is on lines {numbers}"
    return numbers[0]


def marked(file: str | Path, text: str) -> int:
    """The number of the one line of `file` that ends with the comment `# text`."""
    numbers = [
        n
        for n, line in enumerate(Path(file).read_text(encoding="utf-8").splitlines(), 1)
        if line.endswith(f"# {text}")
    ]
    assert len(numbers) == 1, f"# {text} is on lines {numbers}"
    return numbers[0]


@cache
def _warm() -> Warm:
    return Warm()


def nanodoc(
    *arguments: str,
    cwd: Path | None = None,
    stdin: str | None = None,
    ranks: int = 1,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which finds torch imported; of several `ranks`
    one process each, as under torchrun. `environment` is added to this process's."""
    return _ended(arguments, *_warm().run(arguments, cwd or Path.cwd(), stdin, environment, ranks))


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A script as `python` runs it, in a process of its own, which finds torch imported."""
    return _ended(arguments, *_warm().run((PYTHON, *arguments), cwd, None))


def _ended(
    arguments: tuple[str, ...], code: int, out: bytes, err: bytes
) -> subprocess.CompletedProcess[str]:
    # in whatever encoding a test asks for
    texts = (stream.decode("utf-8", "surrogateescape") for stream in (out, err))
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def fresh_nanodoc(
    *arguments: str, cwd: Path | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The command line as a shell starts it."""
    return subprocess.run(
        [sys.executable, "-m", "nanodoc", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        input=stdin,
        timeout=120,
        check=False,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON report a command printed; its stderr if it printed none."""
    assert done.stdout, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def gone(number: int) -> bool:
    """Whether a process ends within five seconds."""
    for _ in range(100):
        try:
            # the name of the program, in parentheses, may hold anything
            if Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False
