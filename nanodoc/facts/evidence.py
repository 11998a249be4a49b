"""What an examination found, as plain frozen facts: rules read these and nothing else.

Nothing here imports torch and nothing holds a tensor, so rules and `nanodoc explain` start without
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanodoc.errors import Phase
from nanodoc.facts.amp import AmpFacts
from nanodoc.facts.asides import AsideFacts
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.collectives import LastCollective
from nanodoc.facts.compiled import CompiledFacts
from nanodoc.facts.crash import CrashFacts, LoadFacts
from nanodoc.facts.death import DeathFacts
from nanodoc.facts.failure import Failure
from nanodoc.facts.graph import GraphFacts, GrowingFacts, LeakFacts, OwnershipFacts
from nanodoc.facts.inspection import InspectionFacts
from nanodoc.facts.items import ItemFacts
from nanodoc.facts.loop import DataFacts, LoopFacts, OverfitFacts, RunStatistics
from nanodoc.facts.ops import Birth, LeafRoot, OptimizerFacts, ParameterFacts, ProbedFacts
from nanodoc.facts.ranks import (
    AtGroupEnd,
    LocalClip,
    RankCourse,
    RankFile,
    RankGradients,
    RankOutcome,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import Pattern


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """Why the tripwire fired."""

    step: int
    phase: Phase
    loss: float | None
    grad_norm: float | None
    bad_parameters: tuple[str, ...] = ()
    bad_at: tuple[tuple[int, ...] | None, ...] = ()
    """Of the gradients of `bad_parameters` that are sharded: the index of the first element that is
    not finite, in the whole parameter."""
    gradients_finite: bool = True
    zero_gradients: bool = False
    """Every gradient is finite and exactly zero: the step hurts nothing."""


EXPERIMENTS = "experiments and fixes"
EXAMINATION = "examination of the last steps (data, labels, layers, loss)"
GRADIENT_FLOW = "gradient flow"
ALWAYS = "finite losses, gradients and weights"
"""What is asked of every step of every run."""


def measured(group: str, missing: str) -> Any:
    """A field that is None where nothing was measured. A report lists `group` among what was
    checked, or among what was not, with `missing` as the reason."""
    return field(default=None, metadata={"group": group, "missing": missing})


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything known when the run ended; the only argument of a rule."""

    steps_run: int = 0
    trip: Trip | None = None
    births: tuple[Birth, ...] = ()
    leaves: tuple[LeafRoot, ...] = ()
    sick_parameters: tuple[ParameterFacts, ...] = ()
    """Parameters and buffers found sick before the first step."""
    optimizers: tuple[OptimizerFacts, ...] = ()
    """Optimizers that made weights non-finite out of finite gradients."""
    optimizer_step: int | None = None
    failure: Failure | None = None
    failure_step: int | None = None
    reproduced: str = "not_run"
    reproduction_note: str = ""
    optimizer_sites: tuple[SourceSpan | None, ...] = ()
    """Where each optimizer was made."""
    rate_sites: tuple[SourceSpan | None, ...] = ()
    """Where each optimizer's learning rate is written: the line of the name that it was given, or
    where it was made."""
    update_site: SourceSpan | None = None
    """The line that moves the weights, in a step without an optimizer."""
    criterion_site: SourceSpan | None = None
    """Where the recipe's criterion was made: nanodoc itself calls it, so that its ops have no line
    of the user's."""
    model_site: SourceSpan | None = None
    """Where the recipe's model was made, if it is one of torch's own kinds: a wrapper."""
    data_site: SourceSpan | None = None
    """Where the recipe names its data."""
    scheduler_sites: tuple[SourceSpan | None, ...] = ()
    """Where each scheduler was made."""
    learning_rates: tuple[float, ...] = ()
    """The learning rate of each optimizer's first group."""
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    amp: str | None = None
    scaler: bool = False
    graph: GraphFacts | None = measured(GRADIENT_FLOW, "no step's autograd graph was recorded")
    """The autograd graph of the step where parameters were first seen without a gradient, or of the
    one that failed."""
    never_got_gradient: tuple[str, ...] = ()
    """Trainable parameters without a gradient in every step of the run."""
    always_zero: tuple[str, ...] = ()
    """Parameters whose gradient was exactly zero in every step (of at least three)."""
    steps_without_gradient: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Parameters that got a gradient on some of the steps looked at, and on which they didn't
    (check-grad-graph)."""
    moved_by_hand: tuple[str, ...] = ()
    """Of those, the ones whose values changed all the same."""
    ownership: OwnershipFacts | None = measured(
        "optimizers against parameters", "the optimizers were not compared with the model"
    )
    leak: LeakFacts | None = None
    growing: tuple[GrowingFacts, ...] = ()
    compiled: CompiledFacts | None = None
    """The first compiled part of the last step that computes something else than its source."""
    probed: tuple[ProbedFacts, ...] = ()
    """The probes of the step that ended the run, where one of them saw NaN or +inf."""
    amp_facts: AmpFacts | None = None
    """Of a run with autocast, a GradScaler or half-precision parameters."""
    pattern: Pattern | None = None
    """What experiments on the step that failed, and on those before it, showed."""
    inspection: InspectionFacts | None = measured(EXAMINATION, "the last steps were not re-run")
    """What the last steps call and make, looked at when the run was over."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Those that were configured; "<rule>.<name>" to value."""
    default_length: bool = False
    """Nobody said how many steps to run: schedules may be meant for fewer."""
    own_length: bool = False
    """The training came to the end that it was written to have; nothing cut it short."""
    cut_short: bool = False
    """A script was ended before its end: what stands behind its loop was not run."""
    ranges: tuple[RangeFacts, ...] = ()
    """Indices and labels out of range, on the first step or on the one that raised."""
    loop: LoopFacts | None = measured("order of calls in the loop", "the loop was not watched")
    stats: RunStatistics | None = measured(
        "weights and layers over the steps", "parameters and layers were not measured"
    )
    data: DataFacts | None = measured("values of the batches", "no batch was measured")
    items: ItemFacts | None = None
    """What single samples of the data set showed when they were drawn again, where they were."""
    asides: AsideFacts | None = None
    """What a script did beside its steps."""
    loads: tuple[LoadFacts, ...] = ()
    """Calls of load_state_dict that left parameters as they were."""
    crash: CrashFacts | None = None
    """What a closer look at `failure` showed."""
    local_clip: LocalClip | None = None
    rank_gradients: RankGradients | None = None
    rank_course: RankCourse | None = None
    at_group_end: AtGroupEnd | None = None
    collectives: tuple[LastCollective, ...] = ()
    """The last ones that this rank entered, one of each process group."""
    saved: tuple[RankFile, ...] = ()
    """What this rank of several saved."""
    loaded: tuple[RankFile, ...] = ()
    """What it read."""
    ranks: tuple[RankOutcome, ...] = ()
    """How each rank of a distributed run ended."""
    death: DeathFacts | None = None
    """How the process ended, where it could not say so itself."""
    overfit: OverfitFacts | None = None
    """What came of training on one batch alone, where that was tried."""
    grad_off_since_build: bool = False
    grad_switched_off_at: SourceSpan | None = None
