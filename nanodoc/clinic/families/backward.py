"""Patients whose values are fine and whose gradients are not."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="digits",
        file="digits",
        story="real handwritten digits, generalised-mean pooling, NaN after a hundred good steps",
        expect="infinite-gradient",
        line="pooled.pow(1.0 / self.p)",
        needs="sklearn",
    ),
    Patient(
        name="generalised-mean",
        file="pooling",
        story="generalised-mean pooling of an all-zero channel",
        expect="infinite-gradient",
        line=".pow(1 / self.p)",
    ),
    Patient(
        name="distance-of-twins",
        file="embedding_distance",
        story="the square root of a zero distance",
        expect="infinite-gradient",
        line="torch.sqrt(squared + eps)",
    ),
    Patient(
        name="cosine-in-half",
        file="cosine_half",
        story="a square root before a cosine similarity, float16 autocast",
        expect="infinite-gradient",
        line="torch.sqrt(a * a + self.floor)",
    ),
    Patient(
        name="log-of-softmax",
        file="log_of_softmax",
        story="a hand-written cross entropy on an outlier",
        expect="log-of-softmax",
        line="torch.log(F.softmax(logits, dim=1))",
    ),
    Patient(
        name="guarded-branch",
        file="guarded_branch",
        story="where() around a square root",
        expect="masked-branch-gradient",
        line="torch.sqrt(x), torch.zeros_like",
    ),
    Patient(
        name="whitening",
        file="whitening",
        story="eigh of a multiple of the identity",
        expect="degenerate-decomposition",
        line="torch.linalg.eigh",
    ),
    Patient(
        name="fixed-scale",
        file="fixed_scale",
        story="float16 with a hand-written loss scale that is too large",
        expect="backward-overflow",
        line="F.mse_loss(predicted.float(), batch[1])",
    ),
    Patient(
        name="low-scale",
        file="loss_scales",
        build="low",
        story="a loss scale that starts at 1 and stays there",
        expect="gradient-underflow",
        line="weight * F.mse_loss",
        severity="warning",
    ),
)
