"""Patients with a graph that is cut, used twice, kept or not trained."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="frozen-features",
        file="frozen_features",
        story="an encoder to be fine-tuned, run under no_grad",
        expect="no-grad-region",
        line="@torch.no_grad()",
    ),
    Patient(
        name="hard-choice",
        file="hard_choice",
        story="a code picked by argmax; the encoder never learns",
        expect="cut-graph",
        line="torch.argmax(scores, dim=-1)",
    ),
    Patient(
        name="carried-state",
        file="carried_state",
        story="a recurrent state kept across steps with its graph",
        expect="backward-twice",
        line="self.state = state",
    ),
    Patient(
        name="overwritten-gate",
        file="overwritten_gate",
        story="a sigmoid scaled in place, which backward needs",
        expect="in-place-overwrite",
        line="gate *= 2.0",
    ),
    Patient(
        name="plain-dict",
        file="plain_dict",
        story="branches in a plain dict, out of reach of parameters()",
        expect="unregistered-module",
        line="self.branches = branches",
    ),
    Patient(
        name="replaced-head",
        file="replaced_head",
        story="a head replaced after the optimizer was made",
        expect="stale-optimizer",
        line="model.head = nn.Linear(16, 4)",
    ),
    Patient(
        name="one-layer-many-times",
        file="one_layer_many_times",
        story="four layers that are one object",
        expect="repeated-module",
        line="nn.ModuleList([layer] * 4)",
        severity="warning",
    ),
    Patient(
        name="batch-as-time",
        file="batch_as_time",
        story="a GRU that takes the batch for time",
        expect="cross-sample-leak",
        line="nn.GRU(5, 16",
        severity="warning",
    ),
)
