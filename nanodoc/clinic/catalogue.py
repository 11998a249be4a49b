"""The clinic's patients, by name. Nothing here imports torch."""

from __future__ import annotations

from difflib import get_close_matches

from nanodoc.clinic.families import (
    amp,
    backward,
    crash,
    data,
    forward,
    graph,
    learning,
    loop,
    options,
    own,
)
from nanodoc.clinic.patient import Patient
from nanodoc.errors import UsageError

FAMILIES: tuple[tuple[Patient, ...], ...] = tuple(
    family.PATIENTS
    for family in (data, forward, backward, amp, graph, learning, loop, options, crash, own)
)
PATIENTS: tuple[Patient, ...] = tuple(patient for family in FAMILIES for patient in family)


def find_patient(name: str) -> Patient:
    """The patient of this name. Raises `UsageError` naming the nearest one."""
    for patient in PATIENTS:
        if patient.name == name:
            return patient
    near = get_close_matches(name, [patient.name for patient in PATIENTS], 1, cutoff=0.3)
    raise UsageError(
        f"no demo named {name!r}"
        + (f"; did you mean {near[0]!r}?" if near else "")
        + " (nanodoc demo lists them)"
    )
