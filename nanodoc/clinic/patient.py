"""What the clinic knows of a patient. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "patients"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """One sick training run and its healthy twin: functions `sick` and `healthy` in
    `patients/<file>.py`, or `sick_<build>` and `healthy_<build>` where several share a file."""

    name: str
    file: str
    build: str = ""
    story: str
    expect: str
    """Name of the rule that must come first."""
    line: str = ""
    """A piece of the source line that must be blamed, empty where the culprit is no line."""
    parameter: str = ""
    """The parameter that must be blamed, empty where any may be."""
    severity: str = "critical"
    needs: str | None = None
    """A package of the `demo` extra that it imports."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the configuration without which the finding does not show."""
    dies: bool = False
    """The training takes its process with it, or never ends: it runs in a child."""
    sure: float = 0.7
    """The least confidence of the finding: lower where it says itself that it is a guess."""

    def entrypoint(self, *, healthy: bool = False) -> str:
        suffix = f"_{self.build}" if self.build else ""
        return f"{_FOLDER / self.file}.py:{'healthy' if healthy else 'sick'}{suffix}"
