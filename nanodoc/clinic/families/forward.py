"""Patients whose forward pass makes NaN or inf."""

from __future__ import annotations

from nanodoc.clinic.patient import Patient

PATIENTS: tuple[Patient, ...] = (
    Patient(
        name="log-of-zero",
        file="log_rate",
        story="the log of a rate that ReLU set to zero",
        expect="log-of-zero",
        line="torch.log(rate)",
    ),
    Patient(
        name="negative-variance",
        file="negative_variance",
        story="the square root of E[x²] − E[x]²",
        expect="domain-error",
        line="torch.sqrt(variance)",
    ),
    Patient(
        name="zero-over-zero",
        file="masked_mean",
        story="a mean over an empty foreground",
        expect="division-by-zero",
        line="(error * mask).sum() / foreground",
    ),
    Patient(
        name="zero-times-log-zero",
        file="entropy",
        story="an entropy written as p·log p",
        expect="log-of-zero",
        line="torch.log(p)",
    ),
    Patient(
        name="empty-set",
        file="padded_attention",
        story="attention over a set of padding only",
        expect="fully-masked-softmax",
        line="F.softmax(scores, dim=-1)",
    ),
    Patient(
        name="last-batch",
        file="last_batch",
        story="the unbiased std of a last batch of size one",
        expect="degenerate-statistics",
        line="returns.std()",
    ),
    Patient(
        name="empty-memory",
        file="empty_memory",
        story="a parameter from torch.empty that is never filled",
        expect="uninitialised-parameter",
        line="nn.Parameter(torch.empty(width))",
    ),
    Patient(
        name="long-transcript",
        file="long_transcript",
        story="a CTC target longer than its input",
        expect="impossible-ctc-alignment",
        line="F.ctc_loss(logp",
    ),
    Patient(
        name="exponential",
        file="exponential",
        story="exp of a large number",
        expect="overflow",
        line="torch.exp(spread.abs())",
    ),
    Patient(
        name="half-overflow",
        file="half_overflow",
        story="a feed-forward layer that exceeds 65504 in float16",
        expect="low-precision-overflow",
        line="self.down(self.up(x) * F.gelu(self.gate(x)))",
    ),
    Patient(
        name="mask-constant",
        file="mask_constant",
        story="−1e9 as a mask in float16",
        expect="mask-constant-overflow",
        line=".to(scores.dtype)",
    ),
    Patient(
        name="lost-epsilon",
        file="lost_epsilon",
        story="1 − 1e-9 is 1 in float32",
        expect="vanishing-epsilon",
        line="torch.log(1 - p)",
    ),
    Patient(
        name="zero-times-inf",
        file="zero_times_inf",
        story="a −inf mask multiplied by zero",
        expect="indeterminate-form",
        line="scores * real.float()",
    ),
    Patient(
        name="dropout-overflow",
        file="dropout_overflow",
        story="a gated feed-forward just below 65504, then dropout",
        expect="low-precision-overflow",
        line="self.dropout(self.wo(",
    ),
    Patient(
        name="half-epsilon",
        file="half_epsilon",
        story="an epsilon of 1e-8 in float16",
        expect="vanishing-epsilon",
        line="/ (weight.sum(1) + self.eps)",
    ),
)
