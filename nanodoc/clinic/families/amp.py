"""Patients in half precision, with a GradScaler or without."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="rebuilt-scores",
        file="rebuilt_scores",
        story="scores rebuilt from a list, and a GradScaler that finds nothing to check",
        expect="no-inf-checks",
        line="torch.as_tensor(scores)",
    ),
    Patient(
        name="clipped-while-scaled",
        file="clipped_while_scaled",
        story="gradients clipped before they are unscaled",
        expect="clip-before-unscale",
        line="clip_grad_norm_(model.parameters(), 1.0)",
    ),
    Patient(
        name="collapsing-scale",
        file="collapsing_scale",
        story="a gradient beyond 65504 at every loss scale",
        expect="persistent-overflow",
        line="return 1.0 / depth",
    ),
    Patient(
        name="half-layer",
        file="half_layer",
        story="a layer cast to float16 under a GradScaler",
        expect="half-parameters",
        line="model[2].half()",
    ),
    Patient(
        name="no-scaler",
        file="no_scaler",
        story="float16 with the GradScaler switched off; small gradients become zero",
        expect="half-without-scaler",
        line="scaler.scale(loss).backward()",
    ),
)
