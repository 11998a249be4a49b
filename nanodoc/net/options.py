"""What the command line asked for. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.net.drill import Drill


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How the check is to be run."""

    timeout: float
    backend: str | None
    sizes: tuple[int, ...]
    drills: tuple[Drill, ...]
    verbose: bool = False
