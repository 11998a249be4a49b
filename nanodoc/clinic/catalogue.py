"""The clinic's patients, by name. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nanodoc.errors import UsageError

_FOLDER = Path(__file__).parent / "patients"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """One sick training run and its healthy twin: functions `sick` and `healthy` in `patients/<file>.py`."""

    name: str
    file: str
    story: str
    expect: str
    """Name of the rule that must come first."""
    line: str
    """A piece of the source line that must be blamed, empty where the culprit is no line."""

    def entrypoint(self, *, healthy: bool = False) -> str:
        return f"{_FOLDER / self.file}.py:{'healthy' if healthy else 'sick'}"


PATIENTS: tuple[Patient, ...] = ()


def find_patient(name: str) -> Patient:
    """The patient of this name. Raises `UsageError` naming the nearest one."""
    for patient in PATIENTS:
        if patient.name == name:
            return patient
    near = get_close_matches(name, [patient.name for patient in PATIENTS], 1, cutoff=0.3)
    raise UsageError(f"no patient {name!r}" + (f"; did you mean {near[0]!r}?" if near else "") + " (nanodoc demo lists them)")
