"""Patients whose training loop forgets a call, or makes it at a wrong time or in a wrong mode."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
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
        name="early-schedule",
        file="warm_up",
        story="a warm-up that steps before the optimizer does",
        expect="scheduler-order",
        line="scheduler.step()",
        severity="warning",
    ),
    Patient(
        name="cleared-too-late",
        file="loop_slips",
        build="cleared",
        story="gradients cleared between backward and step",
        expect="discarded-gradients",
        line="optimizer.zero_grad()",
    ),
    Patient(
        name="summed-parts",
        file="loop_slips",
        build="summed",
        story="micro-batches whose losses are summed",
        expect="unscaled-accumulation",
        line="loss.backward()",
        severity="info",
    ),
    Patient(
        name="clipped-too-late",
        file="loop_slips",
        build="clipped",
        story="gradients clipped after the step",
        expect="clip-after-step",
        line="clip_grad_norm_(model.parameters(), 1.0)",
    ),
    Patient(
        name="fresh-optimizer",
        file="loop_slips",
        build="anew",
        story="an optimizer made in every step",
        expect="optimizer-state-lost",
        line="optimizer.step()",
    ),
    Patient(
        name="stepless",
        file="loop_slips",
        build="stepless",
        story="a loop that never steps its optimizer",
        expect="missing-step",
        line="loss.backward()",
    ),
    Patient(
        name="still-teacher",
        file="still_teacher",
        story="a moving average that is given to the loop's own variable",
        expect="discarded-result",
        line="0.99 * slow + 0.01 * fast",
        severity="warning",
    ),
    Patient(
        name="restless-teacher",
        file="restless_teacher",
        story="a teacher whose dropout is on",
        expect="noisy-reference",
        line="wanted = teacher.to(batch[0].device)(batch[0])",
        severity="warning",
    ),
    Patient(
        name="undifferentiated",
        file="loop_slips",
        build="undifferentiated",
        story="a loop that never differentiates its loss",
        expect="missing-backward",
        line="optimizer.step()",
    ),
    Patient(
        name="fine-tuned",
        file="fine_tuned",
        story="a frozen network that train() puts back into training mode",
        expect="undone-eval",
        line="model.train()",
        severity="warning",
    ),
)
