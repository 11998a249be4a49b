"""Patients with an option, a sign or a state that means something else than their training."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="ignored-class",
        file="ignored_class",
        story="an ignore_index that is one of the classes",
        expect="ignored-class",
        line="nn.CrossEntropyLoss(ignore_index=0)",
        severity="warning",
    ),
    Patient(
        name="swapped-betas",
        file="swapped_betas",
        story="Adam's two betas swapped",
        expect="swapped-betas",
        line="torch.optim.Adam(",
        severity="warning",
    ),
    Patient(
        name="plateau-mode",
        file="plateau_mode",
        story='ReduceLROnPlateau in mode "min" with an accuracy',
        expect="plateau-mode",
        line="ReduceLROnPlateau(optimizer",
        severity="info",
    ),
    Patient(
        name="minimised-overlap",
        file="minimised_overlap",
        story="a loss that minimises the overlap",
        expect="minimised-overlap",
        line="dice = (2 * both + 1) /",
    ),
    Patient(
        name="lost-state",
        file="lost_state",
        story="a recurrent cell whose state resets at every position",
        expect="lost-state",
        line="state = self.cell(x[:, place], state)",
    ),
    Patient(
        name="inverted-ratio",
        file="inverted_ratio",
        story="PPO's probability ratio inverted",
        expect="inverted-ratio",
        line="moved = before - now",
    ),
    Patient(
        name="unmasked-nodes",
        file="unmasked_nodes",
        story="a loss that includes the test nodes",
        expect="unmasked-nodes",
        line="return F.cross_entropy(scores, wanted)",
    ),
)
