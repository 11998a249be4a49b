"""Patients with something wrong in their batches, targets or losses' shapes."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="poisoned-batch",
        file="poisoned_batch",
        story="one record with a NaN",
        expect="non-finite-input",
        line="",
    ),
    Patient(
        name="ignored-targets",
        file="ignored_targets",
        story="a batch in which every target is ignored",
        expect="all-targets-ignored",
        line="F.cross_entropy(logits, labels.flatten())",
    ),
    Patient(
        name="no-negatives",
        file="hard_negatives",
        story="a mean over a selection that is empty",
        expect="empty-reduction",
        line="negatives.mean()",
    ),
    Patient(
        name="rent-table",
        file="rent_table",
        story="a column of predictions minus a flat vector of targets",
        expect="broadcast-loss",
        line="model(features) - rent",
    ),
    Patient(
        name="frozen-augmentation",
        file="frozen_augmentation",
        story="a sampler that draws the same batch again and again",
        expect="constant-batch",
        line="DataLoader(TensorDataset(x, y), batch_sampler",
    ),
    Patient(
        name="padded-songs",
        file="padded_songs",
        story="a loss that counts padding",
        expect="padding-dominated",
        line="F.cross_entropy(scores, ids[:, 1:].flatten()",
    ),
    Patient(
        name="open-mask",
        file="open_mask",
        story="a mask of ones beside padded ids",
        expect="all-ones-mask",
        line="DataLoader(TensorDataset(ids, mask, label)",
        severity="warning",
    ),
)
