"""The clinic's patients, by name. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from nanodoc.errors import UsageError

_FOLDER = Path(__file__).parent / "patients"


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """One sick training run and its healthy twin: functions `sick` and `healthy` in
    `patients/<file>.py`."""

    name: str
    file: str
    story: str
    expect: str
    """Name of the rule that must come first."""
    line: str
    """A piece of the source line that must be blamed, empty where the culprit is no line."""
    severity: str = "critical"
    needs: str | None = None
    """A package of the `demo` extra that it imports."""

    def entrypoint(self, *, healthy: bool = False) -> str:
        return f"{_FOLDER / self.file}.py:{'healthy' if healthy else 'sick'}"


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
        name="house-prices",
        file="house_prices",
        story="a learning rate that only normalised features bear",
        expect="divergence",
        line="torch.optim.SGD",
    ),
    Patient(
        name="sorted-classes",
        file="sorted_classes",
        story="data sorted by class, read in order",
        expect="single-class-batches",
        line="DataLoader(",
        severity="warning",
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
        name="generalised-mean",
        file="pooling",
        story="generalised-mean pooling of a channel that is zero everywhere",
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
        story="a hand-written cross entropy of an outlier",
        expect="log-of-softmax",
        line="torch.log(F.softmax(logits, dim=1))",
    ),
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
        story="a mean over a foreground that is empty",
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
        name="poisoned-batch",
        file="poisoned_batch",
        story="one record with a NaN",
        expect="non-finite-input",
        line="",
    ),
    Patient(
        name="guarded-branch",
        file="guarded_branch",
        story="where() around a square root",
        expect="masked-branch-gradient",
        line="torch.sqrt(x), torch.zeros_like",
    ),
    Patient(
        name="empty-set",
        file="padded_attention",
        story="attention over a set that is padding only",
        expect="fully-masked-softmax",
        line="F.softmax(scores, dim=-1)",
    ),
    Patient(
        name="last-batch",
        file="last_batch",
        story="the unbiased std of a last batch of one",
        expect="degenerate-statistics",
        line="returns.std()",
    ),
    Patient(
        name="empty-memory",
        file="empty_memory",
        story="a parameter from torch.empty that nobody filled",
        expect="uninitialised-parameter",
        line="nn.Parameter(torch.empty(width))",
    ),
    Patient(
        name="half-adam",
        file="half_adam",
        story="Adam's eps on float16 parameters",
        expect="optimizer-made-nan",
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
        name="long-transcript",
        file="long_transcript",
        story="a CTC target longer than its frames",
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
        story="a feed-forward that passes 65504 in float16",
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
        name="no-negatives",
        file="hard_negatives",
        story="a mean over a selection that is empty",
        expect="empty-reduction",
        line="negatives.mean()",
    ),
    Patient(
        name="whitening",
        file="whitening",
        story="eigh of a multiple of the identity",
        expect="degenerate-decomposition",
        line="torch.linalg.eigh",
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
        name="rebuilt-scores",
        file="rebuilt_scores",
        story="scores rebuilt from a list, and a GradScaler that finds nothing to check",
        expect="no-inf-checks",
        line="torch.as_tensor(scores)",
    ),
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
    Patient(
        name="dropout-overflow",
        file="dropout_overflow",
        story="a gated feed-forward just below 65504, and the dropout behind it",
        expect="low-precision-overflow",
        line="self.dropout(self.wo(",
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
        name="half-epsilon",
        file="half_epsilon",
        story="an epsilon of 1e-8 in float16",
        expect="vanishing-epsilon",
        line="/ (weight.sum(1) + self.eps)",
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
        name="rent-table",
        file="rent_table",
        story="a column of predictions minus a flat vector of targets",
        expect="broadcast-loss",
        line="model(features) - rent",
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
    Patient(
        name="lost-inputs",
        file="lost_inputs",
        story="inputs multiplied away: the loss stays at ln C",
        expect="loss-not-decreasing",
        line="F.cross_entropy",
        severity="warning",
    ),
)


def find_patient(name: str) -> Patient:
    """The patient of this name. Raises `UsageError` naming the nearest one."""
    for patient in PATIENTS:
        if patient.name == name:
            return patient
    near = get_close_matches(name, [patient.name for patient in PATIENTS], 1, cutoff=0.3)
    raise UsageError(
        f"no patient {name!r}"
        + (f"; did you mean {near[0]!r}?" if near else "")
        + " (nanodoc demo lists them)"
    )
