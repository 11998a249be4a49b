"""The command line of `scripts/bench`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recipes import MODELS


@dataclass(frozen=True)
class Arguments:
    repeats: int
    seconds: float
    """Length of one repetition."""
    models: tuple[str, ...]
    device: str
    output: Path
    max_monitored: float | None
    memory: bool
    scripts: bool
    """Each model as a script of its own, too."""
    start_up: bool
    """Whole processes, the merging of ranks and a sharded model, too, which are the host's
    affair."""
    long_steps: int
    """Of the long run; 0 for none."""


def parse(description: str, arguments: Sequence[str] | None = None) -> Arguments:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one repetition")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", default="bench.json")
    parser.add_argument(
        "--max-monitored",
        type=float,
        help="exit 1 if a monitored step costs more than this times the bare one",
    )
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-scripts", action="store_true")
    parser.add_argument("--no-start-up", action="store_true")
    parser.add_argument("--long-steps", type=int, default=20_000, help="of the long run; 0: none")
    given = parser.parse_args(arguments)
    return Arguments(
        repeats=given.repeats,
        seconds=given.seconds,
        models=tuple(given.models.split(",")),
        device=given.device,
        output=Path(given.output),
        max_monitored=given.max_monitored,
        memory=not given.no_memory,
        scripts=not given.no_scripts,
        start_up=not given.no_start_up,
        long_steps=given.long_steps,
    )
