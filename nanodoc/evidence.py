"""What an examination found, as plain frozen facts: rules read these and nothing else.

Nothing here imports torch and nothing holds a tensor, so rules and `nanodoc explain` start without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanodoc.amp_evidence import AmpFacts
    from nanodoc.call_evidence import InspectionFacts, RangeFacts
    from nanodoc.crash_evidence import CrashFacts, LoadFacts
    from nanodoc.graph_evidence import GraphFacts, GrowingFacts, LeakFacts, OwnershipFacts
    from nanodoc.loop_evidence import CourseStats, DataFacts, LoopFacts, OverfitFacts
    from nanodoc.process_evidence import DeathFacts
    from nanodoc.rank_evidence import RankOutcome
    from nanodoc.trial_evidence import Pattern


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSpan:
    """A piece of the user's source: `line`/`end_line` from 1, `column`/`end_column` from 1, the end exclusive."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int
    function: str
    code: str
    """The source lines from `line` to `end_line`, dedented, joined by newlines."""
    indent: int = 0
    """Columns that dedenting took off the left of `code`."""

    @property
    def expression(self) -> str | None:
        """The text between the columns, where it lies on one line."""
        if self.line != self.end_line:
            return None
        return self.code[self.column - 1 - self.indent : self.end_column - 1 - self.indent] or None


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFacts:
    """Statistics of one tensor at one moment. `minimum` and `maximum` are over its finite elements."""

    label: str
    """Where it came from: `param:head.weight`, `batch[0]`, the name of the producing op, or the argument's name."""
    dtype: str
    shape: tuple[int, ...]
    numel: int
    minimum: float | None
    maximum: float | None
    nan: int
    posinf: int
    neginf: int
    zeros: int

    @property
    def nonfinite(self) -> int:
        return self.nan + self.posinf + self.neginf

    @property
    def inf(self) -> int:
        return self.posinf + self.neginf

    @property
    def absmax(self) -> float | None:
        if self.minimum is None or self.maximum is None:
            return None
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuesAt:
    """The values of one input at the elements where the output went non-finite (input and output of equal shape)."""

    minimum: float | None
    maximum: float | None
    zeros: int
    count: int
    inf: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class OpFacts:
    """One recorded op with its place, and, when it was examined, what went in and out."""

    index: int
    op: str
    phase: str
    module: str | None
    module_type: str | None
    location: SourceSpan | None
    called_from: SourceSpan | None = None
    """The user's own frame, when `location` lies in an installed library."""
    node: str | None = None
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)
    values_at: tuple[ValuesAt | None, ...] = ()
    """Per input: its values at the bad output elements, None where shapes differ."""
    bad_rows: tuple[int, ...] = ()
    """Indices along the first dimension of the first bad output that hold a non-finite element."""
    upcast_absmax: float | None = None
    """Largest |value| of the same op re-run on float32 inputs, when the output is half precision and bad; None if not finite there."""
    notes: Mapping[str, float] = field(default_factory=dict)
    """Op-specific counts, for example the number of softmax rows that are all −inf."""

    @property
    def short(self) -> str:
        """The op's plain name: `aten.sqrt.default` is `sqrt`."""
        parts = self.op.split(".")
        return (parts[1] if len(parts) > 1 else parts[0]).strip("_")


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowthPoint:
    """The largest |value| at one op on the way to an overflow; inf at its end."""

    what: str
    """The module, or the op's name where it lies in none."""
    absmax: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedFacts:
    """One call of `nanodoc.probe`."""

    label: str
    location: SourceSpan | None
    dtype: str
    shape: tuple[int, ...]
    minimum: float
    maximum: float
    bad: bool
    """NaN or +inf."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Birth:
    """An op on the way to the symptom that made a non-finite value: from finite inputs, or NaN out of a harmless inf."""

    op: OpFacts
    kind: str
    """"nan" or "inf"."""
    phase: str
    """"forward", "backward" or "optimizer"."""
    forward: OpFacts | None = None
    """For a backward birth: the forward op whose derivative it is, or which made the value that backward found saved."""
    upstream: tuple[OpFacts, ...] = ()
    """Nearest ancestors of the (forward) op's inputs, closest first."""
    chain: tuple[OpFacts, ...] = ()
    """From the birth to the symptom, a sample of the ops it spread through."""
    source: LeafRoot | None = None
    """For a value that is non-finite before the op and masked in forward: the leaf it came from."""
    saved_nonfinite: bool = False
    """Backward met a non-finite value saved by forward, though the loss is finite."""
    masked_by: OpFacts | None = None
    """The op that discards the bad elements in forward (where, masked_fill, an index)."""
    zero_gradient: bool = False
    """The gradient that arrived at the bad elements was exactly zero (so 0·inf = NaN)."""
    growth: tuple[GrowthPoint, ...] = ()
    """How the largest value grew on its way to the op, following the largest input back."""
    inf_inputs: tuple[str, ...] = ()
    """Labels of the inputs that held a harmless inf."""
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()

    @property
    def site(self) -> OpFacts:
        """The op in the user's forward code that is to blame: for a value that backward found saved, the op that made it."""
        return self.forward or self.op


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafRoot:
    """A tensor that was non-finite before the step's first op: batch, parameter, buffer or uninitialised memory."""

    kind: str
    """"batch", "parameter", "buffer", "uninitialised" or "unknown"."""
    name: str
    facts: TensorFacts
    consumer: OpFacts | None = None
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()
    chain: tuple[OpFacts, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterFacts:
    """A parameter or buffer looked at outside a step: before the first one, or after an optimizer step."""

    name: str
    kind: str
    facts: TensorFacts
    module: str | None
    module_type: str | None
    registered_at: SourceSpan | None
    never_written: bool = False
    """Its memory came from torch.empty and nothing wrote to it during build()."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerFacts:
    """The optimizer that owns a hurt parameter, with its hyperparameters and where it was built."""

    index: int
    type: str
    hyperparameters: Mapping[str, Any]
    built_at: SourceSpan | None
    parameters: tuple[str, ...]
    """Names of its parameters that are non-finite after a step with finite gradients."""
    total_parameters: int
    dtypes: tuple[str, ...]
    state_zeros: int = 0
    """Elements of a denominator state (exp_avg_sq, sum, square_avg) that are exactly zero under the bad weights."""
    state_facts: tuple[TensorFacts, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """An exception of the user's code, with its traceback trimmed to the user's frames."""

    type: str
    message: str
    phase: str
    frames: tuple[SourceSpan, ...]
    """The user's frames, outermost first."""
    raised_by_torch: bool
    torch_function: str | None
    """The torch function called from the innermost user frame."""
    origin: str = ""
    """The file below torch's folder whose code raised, such as `nn/functional.py`; "" for other code, and for torch's C functions."""
    collating: bool = False
    """It was raised while samples were put together into a batch."""

    @property
    def first_line(self) -> str:
        """Of its message; "" where it has none."""
        return self.message.strip().partition("\n")[0]

    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Trip:
    """Why the tripwire fired."""

    step: int
    phase: str
    loss: float | None
    grad_norm: float | None
    bad_parameters: tuple[str, ...] = ()
    gradients_finite: bool = True
    zero_gradients: bool = False
    """Every gradient is finite and exactly zero: the step hurts nothing."""


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
    criterion_site: SourceSpan | None = None
    """Where the recipe's criterion was made: nanodoc itself calls it, so that its ops have no line of the user's."""
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
    graph: GraphFacts | None = None
    """The autograd graph of the step where parameters were first seen without a gradient, or of the one that failed."""
    never_got_gradient: tuple[str, ...] = ()
    """Trainable parameters without a gradient in every step of the run."""
    always_zero: tuple[str, ...] = ()
    """Parameters whose gradient was exactly zero in every step (of at least three)."""
    steps_without_gradient: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Parameters that got a gradient on some of the steps looked at, and on which they didn't (check-grad-graph)."""
    moved_by_hand: tuple[str, ...] = ()
    """Of those, the ones whose values changed all the same."""
    ownership: OwnershipFacts | None = None
    leak: LeakFacts | None = None
    growing: tuple[GrowingFacts, ...] = ()
    probed: tuple[ProbedFacts, ...] = ()
    """The probes of the step that ended the run, where one of them saw NaN or +inf."""
    amp_facts: AmpFacts | None = None
    """Of a run with autocast, a GradScaler or half-precision parameters."""
    pattern: Pattern | None = None
    """What experiments on the step that failed, and on those before it, showed."""
    inspection: InspectionFacts | None = None
    """What the last steps call and make, looked at when the run was over."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Those that were configured; see `nanodoc.thresholds`."""
    default_length: bool = False
    """Nobody said how many steps to run: schedules may be meant for fewer."""
    ranges: tuple[RangeFacts, ...] = ()
    """Indices and labels out of range, on the first step or on the one that raised."""
    loop: LoopFacts | None = None
    stats: CourseStats | None = None
    data: DataFacts | None = None
    loads: tuple[LoadFacts, ...] = ()
    """Calls of load_state_dict that left parameters as they were."""
    crash: CrashFacts | None = None
    """What a closer look at `failure` showed."""
    ranks: tuple[RankOutcome, ...] = ()
    """How each rank of a distributed run ended."""
    death: DeathFacts | None = None
    """How the process ended, where it could not say so itself."""
    overfit: OverfitFacts | None = None
    """What came of training on one batch alone, where that was tried."""
    grad_off_since_build: bool = False
    grad_switched_off_at: SourceSpan | None = None
