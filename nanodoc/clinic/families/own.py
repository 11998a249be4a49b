"""Patients that only nanodoc's own probes and replays tell of."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (

)
