"""Patients that run to the end and learn nothing, or too little."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="house-prices",
        file="house_prices",
        story="a learning rate that only normalised features bear",
        expect="divergence",
        line="torch.optim.SGD",
    ),
    Patient(
        name="one-cycle",
        file="one_cycle",
        story="a schedule that raises the learning rate beyond what the last layer survives",
        expect="divergence",
        line="OneCycleLR",
    ),
    Patient(
        name="unclipped",
        file="unclipped",
        story="a recurrent net whose gradients grow with the length of the sequence",
        expect="exploding-gradients",
        line="torch.optim.SGD",
    ),
    Patient(
        name="half-adam",
        file="half_adam",
        story="Adam's eps on float16 parameters",
        expect="optimizer-made-nan",
        line="",
    ),
    Patient(
        name="spoken-digits",
        file="spoken_digits",
        story="softmax before a cross entropy that applies it itself",
        expect="double-softmax",
        line="torch.softmax(scores, dim=-1)",
    ),
    Patient(
        name="tumour-masks",
        file="tumour_masks",
        story="a sigmoid before binary_cross_entropy_with_logits",
        expect="double-softmax",
        line="self.net(x)",
    ),
    Patient(
        name="review-attention",
        file="review_attention",
        story="attention normalised over the one score of each word",
        expect="singleton-softmax",
        line="F.softmax(torch.tanh(self.score(states))",
    ),
    Patient(
        name="forgotten-clear",
        file="forgotten_clear",
        story="gradients that are never cleared",
        expect="accumulating-gradients",
        line="optimizer.step()",
    ),
    Patient(
        name="left-in-eval",
        file="left_in_eval",
        story="a validation that leaves the model in eval mode",
        expect="wrong-mode",
        line="model.eval()",
    ),
    Patient(
        name="hot-optimizer",
        file="hot_optimizer",
        story="a learning rate too high to learn with, and nothing overflows",
        expect="learning-rate-range",
        line="torch.optim.Adam(model.parameters(), lr=0.3)",
    ),
    Patient(
        name="impatient-schedule",
        file="impatient_schedule",
        story="a schedule for epochs that steps with every batch",
        expect="learning-rate-range",
        line="ExponentialLR",
    ),
    Patient(
        name="yield-head",
        file="yield_head",
        story="ReLU on the output of a regression with negative targets",
        expect="unreachable-target",
        line="F.relu(out)",
    ),
    Patient(
        name="one-logit",
        file="one_logit",
        story="cross entropy over a single class",
        expect="zero-loss",
        line="F.cross_entropy(scores, target)",
    ),
    Patient(
        name="lost-inputs",
        file="lost_inputs",
        story="inputs multiplied away: the loss stays at ln C",
        expect="loss-not-decreasing",
        line="F.cross_entropy",
        severity="warning",
    ),
)
