"""The report: frozen facts that every renderer reads. The JSON form is the public contract (schema version 1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanodoc.amp_evidence import AmpFacts
from nanodoc.evidence import OpFacts, SourceSpan
from nanodoc.frame_evidence import FrameTable
from nanodoc.loop_evidence import CourseStats, OverfitFacts, WarningFacts
from nanodoc.rank_evidence import RankFacts, RankOutcome

SCHEMA = 1
GROWTH = "growth"
"""Label of the evidence that tells how a value grew until it overflowed."""
OTHERS, ANOTHER_BATCH, THE_STEP = "the other samples'", "another batch's", "the step's"
FLOAT32, FLOAT64, UNMEASURED = "float32's", "float64's", "nothing"
"""Whose loss a fix was compared on: where the guilty samples are known, where another batch passes, where only the gradients were sick,
and where half precision, or float32, is at fault; `UNMEASURED` where the step stays finite and nothing healthy is there to compare."""
SEVERITIES = ("critical", "warning", "info")  # gravest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Culprit:
    """What is to blame. `samples` index into the batch, `dataset_indices` into the data set."""

    kind: str
    """"op", "module", "parameter", "data", "optimizer", "config" or "environment"."""
    op: str | None = None
    node: str | None = None
    module: str | None = None
    module_type: str | None = None
    parameter: str | None = None
    batch_path: str | None = None
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()
    location: SourceSpan | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLink:
    """One op on the way from the cause to the symptom."""

    op: str
    module: str | None
    line: int | None
    dtype: str | None
    shape: tuple[int, ...]
    absmax_in: float | None
    absmax_out: float | None
    nonfinite_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """What a fix changes, in a form that can be tried on the step. `kind`: "float32-module", "float32-call", "bfloat16",
    "autocast-off", "constant" (`value` becomes `replacement` at `location`), "loss-scale" (halved from `value` until it works),
    "unscale-first", "argument" (argument `position` of `op` at `location` becomes what `template` makes of it), "keyword" (the call of `op`
    gets `keyword`, a flag that is `value`), "log-softmax", "logsumexp", "kept-mean", "empty-mean", "unmask-row" (all at `location`),
    "initialise" (`parameters`), "lone-statistics" (the biased std or var of a single value), "without-samples", "without-batch", "identity" (the call of `op` at `location` gives back what it is given), "clear-gradients" (after every optimizer step), "option" (the optimizer's `keyword` is `value`), "lower-rate" (times `value`) or "clip" (to norm `value`)."""

    kind: str
    module: str | None = None
    location: SourceSpan | None = None
    value: float | None = None
    replacement: float | None = None
    op: str | None = None
    position: int = 0
    template: str | None = None
    keyword: str | None = None
    parameters: tuple[str, ...] = ()
    whole_run: bool = False
    """To be tried on all the run's steps, from step 0: a silent mistake shows in where the loss ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fix:
    """A proposed change. `verified` is True only if a replay with it was healthy, None if it was not tried."""

    title: str
    patch: str | None = None
    verified: bool | None = None
    confidence: str = "likely"
    """"machine", "likely" or "maybe": how safely it can be applied as written."""
    loss_change: float | None = None
    """How far the fix moves a loss that was healthy, relative to it."""
    loss_of: str = ""
    """Whose loss that is; not part of the public report."""
    outcome: str | None = None
    """What the run's steps came to with it."""
    remedy: Remedy | None = None
    """How to try it; not part of the public report."""
    replaces: SourceSpan | None = None
    """The expression that `patch` stands for, where it is not the culprit's own; not part of the public report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One root cause with its evidence and its effects."""

    code: str
    name: str
    severity: str
    confidence: float
    title: str
    explanation: str
    culprit: Culprit
    phase: str
    step: int | None
    rank: int = 0
    evidence: tuple[tuple[str, Any], ...] = ()
    chain: tuple[ChainLink, ...] = ()
    effects: tuple[tuple[str, int | None], ...] = ()
    experiments: tuple[Mapping[str, Any], ...] = ()
    fixes: tuple[Fix, ...] = ()
    cause: str | None = None
    """What the experiments' pattern says: "precision", "data", "weights", "mathematics" or "environment"."""
    cause_why: str = ""

    @property
    def fingerprint(self) -> str:
        """Code, module and source line, hashed: the same finding in another run has the same one."""
        location = self.culprit.location
        parts = (self.code, self.culprit.module or "", self.culprit.parameter or "", location.code if location else "")
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What was run, on what."""

    entrypoint: str
    command: str
    config: Mapping[str, Any]
    device: str
    amp: str | None
    seed: int | None
    steps_requested: int
    steps_run: int
    torch: str
    python: str
    reproduced: str = "not_run"
    rank: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class VitalSigns:
    """The run's course. `losses` and `grad_norms` are per step; `overhead` is the step time with nanodoc over without."""

    steps: int = 0
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    skipped_steps: int = 0
    overhead: float | None = None
    scales: tuple[float, ...] = ()
    """The loss scale of each step."""
    rates: tuple[float, ...] = ()
    """The highest learning rate of each step."""
    update_ratios: tuple[float, ...] = ()
    """|Δw|/|w| of all weights together, of the steps that were sampled."""
    load_share: float | None = None
    """Share of the time spent waiting for data."""
    samples_per_second: float | None = None
    peak_memory: int | None = None
    """Bytes: the peak of the accelerator's allocator, the largest resident set of the process on the CPU."""
    calibration_skips: int = 0
    """Of the skipped steps, those in a row that the run began with."""


OK, PROBLEM, SKIPPED = "ok", "problem", "not checked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One line of the list. `state` is OK, PROBLEM or SKIPPED."""

    name: str
    state: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GradParameter:
    """One parameter in `check-grad-graph`. `states` are per step, as in `graph_evidence`."""

    name: str
    shape: tuple[int, ...]
    numel: int
    states: tuple[str, ...]
    norm: float | None
    optimizers: tuple[int, ...]

    @property
    def state(self) -> str:
        """One word for all steps; "intermittent" where they differ in whether there is a gradient."""
        kinds = set(self.states)
        if len(kinds) == 1:
            return self.states[0]
        return "gradient" if kinds <= {"gradient", "zero"} else "intermittent"


@dataclass(frozen=True, kw_only=True, slots=True)
class GradGraph:
    """Every parameter's state after backward, and the module-level picture."""

    steps: int
    has_optimizer: bool
    parameters: tuple[GradParameter, ...]
    modules: Mapping[str, str]
    """Type of every module, by path, in the order of the model."""
    edges: tuple[tuple[str, str, bool, bool], ...] = ()
    """(source, target, carries gradient, is cut)"""
    cuts: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(kind, place, orphaned parameters)"""
    outside: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """What is not the model's: (name, shape, "in the optimizer but not in the model" or "not registered")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything a user sees is rendered from this."""

    nanodoc: str
    run: RunInfo
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[tuple[str, str], ...] = ()
    vitals: VitalSigns = field(default_factory=VitalSigns)
    artifacts: Mapping[str, str | None] = field(default_factory=dict)
    interrupted: bool = False
    graph: GradGraph | None = None
    """Who gets a gradient; only of `check-grad-graph`."""
    amp: AmpFacts | None = None
    """Mixed precision: the scale's course, and what half precision rounds to zero."""
    tried: tuple[Mapping[str, Any], ...] = ()
    """Experiments that were asked for by name, apart from those of a finding."""
    ops: tuple[OpFacts, ...] = ()
    """The ops between cause and symptom; only of `replay --ops`."""
    frames: tuple[FrameTable, ...] = ()
    """The module frames of the steps that were looked at; only with `--frames`."""
    warnings: tuple[WarningFacts, ...] = ()
    """What torch and the training code warned of during the run."""
    preflight: tuple[Check, ...] = ()
    """What was checked of the first step; only with `--preflight`."""
    overfit: OverfitFacts | None = None
    """What came of training on one batch alone; only with `--overfit-batch`."""
    stats: CourseStats | None = None
    """Every parameter and every layer; only with `--stats`."""
    of_rank: RankFacts | None = None
    """What one rank of several knows of itself, for the merged report; not public."""
    ranks: tuple[RankOutcome, ...] = ()
    """How each rank ended; only of a distributed run."""

    @property
    def verdict(self) -> str:
        """ "healthy", "warning", "critical", or "failed" when the user's code raised."""
        if any(f.severity == "critical" and f.code.startswith("ND7") for f in self.findings[:1]):
            return "failed"
        for severity in ("critical", "warning"):
            if any(finding.severity == severity for finding in self.findings):
                return severity
        return "healthy"
