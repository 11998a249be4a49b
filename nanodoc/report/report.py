"""The report: frozen facts that every renderer reads. The JSON form is the public contract (schema
version 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nanodoc.diagnosis.finding import Check, Finding
from nanodoc.facts.amp import AmpFacts
from nanodoc.facts.frames import FrameTable, Magnitude
from nanodoc.facts.learning import Learning
from nanodoc.facts.loop import OverfitFacts, RunStatistics, WarningFacts
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.ranks import RankFacts, RankOutcome
from nanodoc.facts.snapshot import SnapshotFacts
from nanodoc.facts.untraced import Untraced

SCHEMA = 2
NOTHING = "nothing found"
"""The verdict where no finding is a warning or worse."""
OTHERS, ANOTHER_BATCH, THE_STEP = "the other samples'", "another batch's", "the step's"
FLOAT32, FLOAT64, UNMEASURED = "float32's", "float64's", "nothing"
"""Whose loss a fix was compared on: where the guilty samples are known, where another batch passes,
where only the gradients were sick, and where half precision, or float32, is at fault; `UNMEASURED`
where the step stays finite and nothing healthy is there to compare."""


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
    attempt: int = 1
    """Which start of the job it is, where a launcher starts it again after a failure."""
    step_found: str = ""
    """Where a script's step was found, and whether it can be run again."""
    trainings: tuple[str, ...] = ()
    """What came of each training of a script that makes several, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VitalSigns:
    """The run's course. `losses` and `grad_norms` are per step; `overhead` is the step time with
    nanodoc over without."""

    steps: int = 0
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    """As the optimizer found the gradients: after clipping."""
    clip_norms: tuple[float, ...] = ()
    """Before each clipping to a norm, of the steps watched in full."""
    optimizer_steps: int | None = None
    """How often optimizers stepped in `steps` iterations of a loop; None where that is not
    known."""
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
    """Bytes: the peak of the accelerator's allocator, the largest resident set of the process on
    the CPU."""
    calibration_skips: int = 0
    """Of the skipped steps, those in a row that the run began with."""


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
        """One word for all steps; "intermittent" where they differ in whether there is a
        gradient."""
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
    """What is not the model's: (name, shape, "in the optimizer but not in the model" or "not
    registered")."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accepted:
    """A finding that the user has accepted: it is told, and counts for nothing."""

    finding: Finding
    by: Literal["comment", "allow", "baseline"]
    place: str
    """`FILE:LINE` of the comment, the baseline's file, or "" for the configuration."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusedIgnore:
    """A comment that accepts findings at a line where there were none."""

    file: str
    line: int
    codes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything a user sees is rendered from this."""

    nanodoc: str
    run: RunInfo
    findings: tuple[Finding, ...] = ()
    checked: tuple[str, ...] = ()
    """What was asked of the run, in words."""
    not_checked: tuple[tuple[str, str], ...] = ()
    """(what, why)"""
    vitals: VitalSigns = field(default_factory=VitalSigns)
    artifacts: Mapping[str, str | None] = field(default_factory=dict)
    interrupted: bool = False
    script_status: int | None = None
    """The exit status of a script that ran to its end; not public."""
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
    magnitudes: tuple[Magnitude, ...] = ()
    """The layers' outputs in the step that failed; only with a page or JSON."""
    warnings: tuple[WarningFacts, ...] = ()
    """What torch and the training code warned of during the run."""
    preflight: tuple[Check, ...] = ()
    """What was checked of the first step; only with `--preflight`."""
    learning: Learning | None = None
    """Whether it learns: its loss beside that of the best constant answer; only of a run."""
    overfit: OverfitFacts | None = None
    """What came of training on one batch alone; only with `--overfit-batch`."""
    stats: RunStatistics | None = None
    """Every parameter and every layer; only with `--stats`."""
    of_rank: RankFacts | None = None
    """What one rank of several knows of itself, for the merged report; not public."""
    ranks: tuple[RankOutcome, ...] = ()
    """How each rank ended; only of a distributed run."""
    accepted: tuple[Accepted, ...] = ()
    """Findings that the user has accepted; they are not among `findings`."""
    unused_ignores: tuple[UnusedIgnore, ...] = ()
    """Comments in the user's own files that accepted nothing."""
    snapshot: SnapshotFacts | None = None
    """What a snapshot holds; only where one is viewed."""
    broke: bool = False
    """The run was ended by an error, a death, or values that are not finite; not public."""
    whole: bool = False
    """The run went to its end, and was looked at when it was over; not public."""
    unjudged: tuple[tuple[str, str], ...] = ()
    """(code, why) of each rule that could not judge, as `not_checked` says it; not public."""
    looked: float = 0.0
    """Seconds of the budget that the looks in the training's process have used; not public."""
    untraced: Untraced | None = None
    """The sick step that ended a script and could not be run again; not public."""
    sources: tuple[str, ...] = ()
    """The user's own files that the run used; not public."""

    @property
    def verdict(self) -> str:
        """`NOTHING`, "warning", "critical", or "failed" when the user's code raised."""
        if any(f.severity == "critical" and f.family == "crash" for f in self.findings[:1]):
            return "failed"
        for severity in ("critical", "warning"):
            if any(finding.severity == severity for finding in self.findings):
                return severity
        return NOTHING
