"""How a run's loop conducts itself, and the vital signs of all its steps. Like `evidence`: plain,
frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan

(
    CARRIED,
    DISCARDED,
    EARLY,
    DROPPED,
    CLIPPED_LATE,
    CLIPPED_EARLY,
    CLIPPED_NOTHING,
    FRESH_OPTIMIZER,
    SUMMED,
    NEVER_STEPPED,
    NEVER_DIFFERENTIATED,
    IN_VAIN,
) = (
    "carried",
    "discarded",
    "early",
    "dropped",
    "clipped-late",
    "clipped-early",
    "clipped-nothing",
    "fresh-optimizer",
    "summed",
    "never-stepped",
    "never-differentiated",
    "in-vain",
)

FAR_MEAN = 10.0
"""|mean| of a sample from which on it is far from what layers are initialised for (DLCheck)."""
FAR_VALUE = 50.0
"""Largest |x| of a sample from which on it is (torch-audit)."""
TINY_VALUE = 0.01
"""Largest |x| of a sample below which it is: pictures of 0 … 255 that were divided by 255 twice end
at 0.004."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopMisuse:
    """One kind of misconduct of a train_step.

    CARRIED: an optimizer stepped on gradients that still held those of its step before. DISCARDED:
    they were cleared between backward and the step. EARLY: the same, as the step comes before the
    backward of its iteration. DROPPED: of several micro-batches' gradients,
    all but the last were cleared before the step. CLIPPED_LATE: they were clipped after the step
    that used them. CLIPPED_EARLY: a clip came after they were cleared, and before the backward.
    CLIPPED_NOTHING: a clip was given no parameters.
    FRESH_OPTIMIZER: an optimizer with a state was made anew for every step. SUMMED: losses of
    several micro-batches were differentiated as they are. NEVER_STEPPED: backward came, and no
    optimizer ever stepped. NEVER_DIFFERENTIATED: no backward ever came. IN_VAIN: an optimizer
    stepped after a backward, and none of its parameters had a gradient."""

    kind: str
    steps: int
    """Steps on which it happened."""
    watched: int
    """Steps that were watched and in which an optimizer stepped; for the two that never came, all
    that were watched."""
    first_step: int
    location: SourceSpan | None
    """The call that is to blame."""
    other: SourceSpan | None = None
    """The call that it came too late or too early for."""
    parameters: tuple[str, ...] = ()
    """CARRIED: some of those it happened to; IN_VAIN: all that the optimizer holds."""
    times: int = 0
    """SUMMED, DROPPED: backward passes a step."""


OVERWRITING = ("OneCycleLR", "CyclicLR")
"""Schedules that give the rates themselves, whatever the optimizer was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerFacts:
    """One learning rate schedule."""

    type: str
    built_at: SourceSpan | None
    last_epoch: int | None = None
    period: int | None = None
    """CosineAnnealingLR's T_max, OneCycleLR's total_steps."""
    base: float | None = None
    """The highest of the rates that its optimizer was given."""
    stepped_at: SourceSpan | None = None
    stepped_first: bool = False
    """It stepped before any optimizer had."""
    steps: int = 0
    """How often it stepped during the run."""
    mode: str | None = None
    """`min` or `max`, of a ReduceLROnPlateau."""

    @property
    def idle(self) -> bool:
        """It has never stepped, since it was made."""
        return self.steps == 0 and self.last_epoch == 0 and self.mode is None


@dataclass(frozen=True, kw_only=True, slots=True)
class WarningFacts:
    """A warning that torch gave, with the user's line."""

    category: str
    message: str
    location: SourceSpan | None
    step: int
    count: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeChange:
    """The last line that put the model, or a part of it, into eval mode."""

    module: str
    location: SourceSpan | None
    step: int | None
    """None: during build()."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopFacts:
    """What the loop did besides computing."""

    misuses: tuple[LoopMisuse, ...] = ()
    schedulers: tuple[SchedulerFacts, ...] = ()
    warnings: tuple[WarningFacts, ...] = ()
    mode_changes: tuple[ModeChange, ...] = ()
    training_at: tuple[tuple[int, bool], ...] = ()
    """(step, whether the model was in training mode when its forward ran), where it changed."""
    observed: bool = False
    """The loop is the user's own train_step."""
    optimizer_steps: int | None = None
    """How often optimizers stepped in it; None where it is not the user's own."""
    clip_norms: tuple[float, ...] = ()
    """The norm of the gradients before each clipping to a norm, of the steps watched in full."""
    writes_files: bool = False
    """It has opened files for writing: run again for many steps, it would write over what it
    wrote."""

    def misuse(self, kind: str) -> LoopMisuse | None:
        """The one of that kind."""
        return next((misuse for misuse in self.misuses if misuse.kind == kind), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterStats:
    """One parameter of the model, and its gradient as it last was looked at."""

    name: str
    shape: tuple[int, ...]
    trainable: bool
    module_type: str
    norm: float | None = None
    """Of the weights, when the run ended."""
    grad_mean: float | None = None
    grad_std: float | None = None
    grad_max: float | None = None
    grad_norm: float | None = None
    """Median over the steps."""
    ratio: float | None = None
    """|Δw|/|w| of one step, the median of the steps that were sampled."""
    fastest: float | None = None
    """The largest of these."""
    moved: float | None = None
    """How far it has moved since step 0, relative to its norm then (to 1 where that was zero); None
    where it isn't known."""
    identical_rows: bool = False
    """All its rows (the weights of its units) are the same, up to rounding."""
    began_alike: bool = False
    """Its rows were equal before the first step, and not zero."""
    began_positive: bool = False
    """None of its first values was below zero, and they were not all the same."""
    began_wide: float | None = None
    """The standard deviation of its first values over sqrt(2 / fan_in) (He et al. 2015); of two and
    more dimensions, where its first values are known."""
    initialised_at: SourceSpan | None = None
    """The user's line that gave it its values, where it is all zeros, has equal rows, or began
    without a negative value or several times as wide as He's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerStats:
    """One module's output, as it last was looked at."""

    module: str
    module_type: str
    mean: float
    std: float
    absmax: float
    zeros: float
    """Share of exact zeros."""
    grad_norm: float | None = None
    """Of its own parameters together, the median over the steps; None where it has none with a
    gradient."""
    saturated: float | None = None
    dead: float | None = None
    """Share of units that were zero on every sample."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLeaf:
    """One tensor of the batches, over those that are still there."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    floating: bool
    minimum: float
    maximum: float
    mean: float
    std: float
    top_share: float = 0.0
    """Integers: share of the most frequent value, per batch the smallest."""
    top_value: float | None = None
    ragged: bool = False
    """Integers: rows end in runs of the most frequent value, of different lengths, as padding
    does."""
    columns: tuple[int, ...] = ()
    """Integers in a few columns, (samples, columns): the largest of each, where none is below 0."""
    constant: bool = False
    """Every element of every batch is the same value."""
    typical: float = 0.0
    """The median sample's largest |value|."""
    typical_mean: float = 0.0
    """The median sample's mean."""
    same_samples: bool = False
    """All samples of all batches are the same."""

    @property
    def far(self) -> bool:
        """The median sample is far from mean 0 and deviation 1, as ND107 has it by default."""
        return abs(self.typical_mean) > FAR_MEAN or self.typical > FAR_VALUE

    @property
    def tiny(self) -> bool:
        """Nothing in the median sample is far enough from 0."""
        return 0 < self.typical < TINY_VALUE


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyFacts:
    """A part of the batch, each of whose numbers another part holds at a fixed place, perhaps on
    another scale."""

    path: str
    inside: str
    places: tuple[tuple[int, ...], ...]
    """In one sample of `inside`, for each number of a sample of `path`."""
    samples: int
    equal: bool
    """The numbers themselves are the same; else they are on another scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddedLabels:
    """Whole numbers that are one and the same wherever a mask of the batch says padding."""

    path: str
    mask: str
    """The path of the mask."""
    value: int
    share: float
    """Of all positions: those of padding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairDistances:
    """How far apart the two inputs of a pair are, by its label."""

    path: str
    """Of the labels: 0 and 1, or −1 and 1."""
    inputs: tuple[str, str]
    low: float
    """The mean distance of the pairs with the lower label."""
    high: float
    apart: float
    """Standard errors from the lower label's mean to the higher one's (Welch's t)."""
    pairs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TripletDistances:
    """How far two of the three inputs of a triplet are from the third."""

    anchor: str
    others: tuple[str, str]
    means: tuple[float, float]
    """Their mean distances from it."""
    apart: float
    """Standard errors of the mean of (distance of the first - distance of the second)."""
    triplets: int


@dataclass(frozen=True, kw_only=True, slots=True)
class OneOrder:
    """Of a DistributedSampler that shuffles, and was never told of the epoch."""

    passes: int
    """Over the data; the last one may not be over."""
    batches: int
    """Of a pass."""
    line: SourceSpan | None
    """The one that made the sampler."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """The batches that are still there when the run has ended."""

    batches: int = 0
    leaves: tuple[BatchLeaf, ...] = ()
    copies: tuple[CopyFacts, ...] = ()
    padded: tuple[PaddedLabels, ...] = ()
    pairs: tuple[PairDistances, ...] = ()
    triplets: tuple[TripletDistances, ...] = ()
    identical: int = 0
    """Pairs of successive batches of one pass that are bitwise the same, though each was made
    anew."""
    loader: bool = False
    """They come from a DataLoader, which makes each batch anew."""
    per_pass: int | None = None
    """Batches of one pass over the data, where known."""
    load_share: float | None = None
    """Share of the time spent waiting for the data."""
    median_wait: float = 0.0
    """Seconds that half of the steps waited for their batch, at most: workers that start, or a busy
    machine, delay a few of them."""
    load_seconds: float = 0.0
    """A step's."""
    one_order: OneOrder | None = None
    """All passes over the data have the same order, which was meant to be shuffled."""
    far_at: SourceSpan | None = None
    """The line that makes the values of a sample that are far from mean 0 and deviation 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundingFacts:
    """What the optimizers' step of the last batch, at the run's median rates, did to half-precision
    weights, beside the same step on float32 copies of weights, gradients and state."""

    dtype: str
    elements: int
    """With a gradient, of parameters with a rate above 0."""
    kept: float
    """The share of them that stayed bitwise as they were."""
    moved: float
    """The share of those that the step moves in float32."""
    ratio: float
    """The median of their float32 updates, in units in the last place of the weight."""
    drift: float
    """The median of |update| / |weight| in float32."""
    compensated: float
    """Elements whose update is under a fifth of such a unit and that moved all the same, over as
    many as stochastic rounding moves: 0 for plain rounding, about 1 for stochastic rounding,
    compensated sums and master weights elsewhere."""
    parameter: str
    """The one with the most elements that stayed."""
    made_at: SourceSpan | None
    """The line that cast it, or made it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrownFacts:
    """A parameter or a buffer that ran away."""

    name: str
    buffer: bool
    times: float
    """Its norm at the end of the run over that before the first step."""
    late: float
    """The same over that in the middle of the run."""
    jump: float
    """Its largest growth from one sampled step to the next."""
    size: float
    """The root of the mean square of its values at the end."""
    at: SourceSpan | None = None
    """The line of the step that writes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CreepingFacts:
    """An optimizer whose weights would need tens of thousands of steps to move by their own size.
    None of them was loaded, and its learning rate does not rise."""

    optimizer: int
    """Its position among the optimizers."""
    parameter: str
    """The one that moved farthest for its size."""
    moved: float
    """How far all of them moved, relative to their norm."""
    steps: int
    rate: float
    """The highest learning rate of its groups."""
    adaptive: bool
    """The rate alone says how far a step goes, whatever the size of the gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoppedFacts:
    """An optimizer whose steps change nothing any more, though its weights get gradients and its
    learning rate is not near zero."""

    optimizer: int
    """Its position among the optimizers."""
    parameters: tuple[str, ...]
    since: int
    """The first step that was looked at after which all its parameters stayed as they were."""
    until: int
    """The last step of the run."""
    grad_norm: float
    """Of the first parameter, at a step since then."""
    rate: float
    """The lowest since then, of its highest group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStatistics:
    """The vital signs of all steps."""

    rates: tuple[tuple[float, ...], ...] = ()
    """Learning rates of every group of every optimizer, step by step."""
    group_ratios: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(step, |Δw|/|w| of every parameter group) of the steps that were sampled."""
    kept: tuple[tuple[int, float], ...] = ()
    """(step, share of the elements of half-precision parameters with a gradient that the step left
    bitwise as they were) of the steps that were sampled."""
    rounding: RoundingFacts | None = None
    grown: tuple[GrownFacts, ...] = ()
    """The one that grew most first."""
    creeping: tuple[CreepingFacts, ...] = ()
    stopped: tuple[StoppedFacts, ...] = ()
    weights_grew: float | None = None
    """The norm of all trained parameters at the end of the run over that before the first step."""
    parameters: tuple[ParameterStats, ...] = ()
    layers: tuple[LayerStats, ...] = ()
    sampled: tuple[int, ...] = ()
    peak_memory: int | None = None
    """Bytes."""
    given_rates: tuple[float | None, ...] = ()
    """The rates that each group was given before any schedule, as far as that is known."""
    warmup_at: SourceSpan | None = None
    """The only line of the user's that says how long the warm-up is which still goes on."""
    gone_at: SourceSpan | None = None
    """The line that gives the last rate, where that is next to nothing and a function of the user's
    gives it."""
    betas: tuple[tuple[float, float] | None, ...] = ()
    """Of each optimizer that has two."""
    raised_at: SourceSpan | None = None
    """The line that gives the highest rate, where a function of the user's raises it above the one
    that the optimizer was given."""

    @property
    def raised(self) -> float:
        """The highest rate of the first group over the one that it was given; 1 where that is not
        known."""
        given = self.given_rates[0] if self.given_rates else None
        highest = max((step[0] for step in self.rates if step), default=0.0)
        return highest / given if given else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class OverfitFacts:
    """One batch trained on alone, and the same with its inputs zeroed."""

    steps: int
    first: float
    last: float
    zeroed_last: float | None = None
    """The loss after as many steps on zeroed inputs; None where the inputs can't be told from the
    targets."""
    zeroed: tuple[str, ...] = ()
    """Parts of the batch that were zeroed."""
    faster_last: float | None = None
    """The loss after as many steps at ten times the learning rate, where that was tried."""
    asked: bool = False
    """The user asked for it."""

    @property
    def fits(self) -> bool:
        """The loss fell to less than half: a model that can learn a batch by heart goes much
        further, given the steps."""
        return self.last < 0.5 * self.first
