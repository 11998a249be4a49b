"""Patients that only nanodoc's own probes and replays tell of."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="marked-table",
        file="probed",
        build="mark",
        story="a marked table that holds inf, and no loss that reads it",
        expect="nonfinite-probe",
        line="nanodoc.probe(self.table",
    ),
    Patient(
        name="hidden-counter",
        file="probed",
        build="counter",
        story="a temperature that counts calls where no replay finds them",
        expect="not-reproduced",
        sure=0.3,
    ),
)
