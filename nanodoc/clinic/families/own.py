"""Patients that only nanodoc's own probes and replays tell of."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="marked-table",
        file="probed",
        build="mark",
        story="a probed table with inf that the loss does not read",
        expect="nonfinite-probe",
        line="nanodoc.probe(self.table",
    ),
    Patient(
        name="hidden-counter",
        file="probed",
        build="counter",
        story="a temperature with a call counter that replay can't restore",
        expect="not-reproduced",
        sure=0.3,
    ),
)
