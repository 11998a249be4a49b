"""Patients that end early, with an exception or without one."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (

)
