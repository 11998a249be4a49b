"""Patients in half precision, with a GradScaler or without."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="rebuilt-scores",
        file="rebuilt_scores",
        story="scores rebuilt from a list, so GradScaler finds no gradients to check",
        expect="no-inf-checks",
        line="torch.as_tensor(scores)",
    ),
    Patient(
        name="clipped-while-scaled",
        file="clipped_while_scaled",
        story="gradient clipping before scaler.unscale_()",
        expect="clip-before-unscale",
        line="clip_grad_norm_(model.parameters(), 1.0)",
    ),
    Patient(
        name="collapsing-scale",
        file="collapsing_scale",
        story="a gradient above 65504 at every loss scale",
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
    Patient(
        name="eager-scale",
        file="loss_scales",
        build="eager",
        story="a loss scale that grows sixteenfold at every step",
        expect="collapsing-scale",
    ),
    Patient(
        name="past-the-scaler",
        file="past_the_scaler",
        story="an optimizer that steps on scaled gradients",
        expect="scaler-call-order",
        line="optimizer.step()",
    ),
    Patient(
        name="autocast-ends",
        file="autocast_ends",
        build="outside",
        story="an autocast context that ends before the model is called",
        expect="autocast-not-applied",
        line='torch.autocast("cpu"',
        severity="warning",
    ),
    Patient(
        name="near-the-end",
        file="autocast_ends",
        build="near_the_end",
        story="a layer whose output is just below float16's maximum",
        expect="low-headroom",
        line="self.norm(self.stem(x))",
        severity="info",
    ),
)
