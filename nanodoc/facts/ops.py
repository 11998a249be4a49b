"""Ops, tensors and the births of non-finite values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nanodoc.facts.notes import OpNotes
from nanodoc.facts.source import SourceSpan
from nanodoc.vocabulary.names import op_name

OpPhase = Literal["forward", "backward", "recompute", "optimizer"]
"""Where in a step an op ran; "recompute" is a checkpoint's forward, run again in the backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFacts:
    """Statistics of one tensor at one moment. `minimum` and `maximum` are over its finite
    elements."""

    label: str
    """Where it came from: `param:head.weight`, `batch[0]`, the name of the producing op, or the
    argument's name."""
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
    """The values of one input at the elements where the output went non-finite (input and output of
    equal shape)."""

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
    phase: OpPhase
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
    """Largest |value| of the same op re-run on float32 inputs, when the output is half precision
    and bad; None if not finite there."""
    received: bool = False
    """What it gives comes from other ranks, too; where it is told of a birth, this rank gave finite
    values only."""
    notes: OpNotes | None = None
    """Counts of its kind of op, for example the number of softmax rows that are all −inf."""

    @property
    def site(self) -> SourceSpan | None:
        """The user's own line; the library's where no frame of the user's called it."""
        return self.called_from or self.location

    @property
    def short(self) -> str:
        """The op's plain name: `aten.sqrt.default` is `sqrt`."""
        return op_name(self.op)


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
    """An op on the way to the symptom that made a non-finite value: from finite inputs, or NaN out
    of a harmless inf."""

    op: OpFacts
    kind: str
    """"nan" or "inf"."""
    phase: OpPhase
    """"forward", "backward" or "optimizer"."""
    forward: OpFacts | None = None
    """For a backward birth: the forward op whose derivative it is, or which made the value that
    backward found saved."""
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
    amplified: OpFacts | None = None
    """The op before it that had made huge values of modest ones: an exponential, a division by next
    to nothing."""
    inf_inputs: tuple[str, ...] = ()
    """Labels of the inputs that held a harmless inf."""
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()

    @property
    def site(self) -> OpFacts:
        """The op in the user's forward code that is to blame: for a value that backward found
        saved, the op that made it."""
        return self.forward or self.op


@dataclass(frozen=True, kw_only=True, slots=True)
class Making:
    """The line of the user's code after which bad values of a batch were first there."""

    line: SourceSpan
    name: str
    """The variable that held them."""
    stage: Literal["sample", "build"]
    """"sample": they are made anew each time the sample is drawn; "build": they lie in the data."""


RECEIVED = "received"
"""The kind of a leaf that another rank sent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeafRoot:
    """A tensor that no op of the step made non-finite: batch, parameter, buffer, uninitialised
    memory, or what another rank sent."""

    kind: str
    """"batch", "parameter", "buffer", "uninitialised", "received" or "unknown"."""
    name: str
    facts: TensorFacts
    consumer: OpFacts | None = None
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()
    chain: tuple[OpFacts, ...] = ()
    making: Making | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterFacts:
    """A parameter or buffer looked at outside a step: before the first one, or after an optimizer
    step."""

    name: str
    kind: str
    facts: TensorFacts
    module: str | None
    module_type: str | None
    registered_at: SourceSpan | None
    never_written: bool = False
    """Its memory came from torch.empty and nothing wrote to it during build()."""
    trained: bool = False
    """Steps that nobody watched had trained it already."""


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
    """Elements of a denominator state (exp_avg_sq, sum, square_avg) that are exactly zero under the
    bad weights."""
    state_facts: tuple[TensorFacts, ...] = ()


def all_received(births: Sequence[Birth], leaves: Sequence[LeafRoot]) -> bool:
    """All that is not finite came from other ranks: out of collectives into which this one gave
    finite values, or sent by one of them. False where there is nothing."""
    received = [birth.op.received for birth in births]
    received += [leaf.kind == RECEIVED for leaf in leaves]
    return bool(received) and all(received)
