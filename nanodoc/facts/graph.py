"""Facts about the autograd graph, who owns which parameter, and samples that influence each other.
Like `evidence`: plain, frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan

# States of a parameter in one step, the healthy ones first.
GRADIENT, ZERO, FROZEN, UNUSED, UNREACHED, CUT, LOST = (
    "gradient",
    "zero",
    "frozen",
    "unused",
    "unreached",
    "cut",
    "lost",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterState:
    """One parameter after one backward."""

    name: str
    module: str
    module_type: str
    shape: tuple[int, ...]
    numel: int
    state: str
    """"gradient", "zero" (an exactly zero gradient), "frozen" (requires_grad is False), "unused"
    (no op read it), "unreached" (read, but the loss doesn't depend on it), "cut" (the loss depends
    on it, autograd can't get there), "lost" (autograd can get there, but no gradient arrived)."""
    norm: float | None = None
    optimizers: tuple[int, ...] = ()
    """Positions of the optimizers that hold it; empty if none does."""
    registered_at: SourceSpan | None = None
    twin: str | None = None
    """A parameter of the same shape and place in a sibling module that did get a gradient."""
    copied: bool = False
    """Its values were those of its twin when training began."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CutFacts:
    """One place where the gradient path of some parameters ends."""

    op: OpFacts
    kind: str
    """"detach", "data", "item", "rebuilt" (torch.tensor and kin), "numpy", "no-derivative",
    "integer", "comparison", "region", "frozen-midway", "in-place", "flat", "custom-function" or
    "rewrapped"."""
    region_kind: str = ""
    region: SourceSpan | None = None
    """The line that switched gradients off around the op."""
    orphans: tuple[str, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    """Shapes of the op's tensor inputs."""
    added_at: SourceSpan | None = None
    """For a term of the loss: where it is added."""
    added_by_library: bool = False
    """That line is an installed library's."""
    returned_at: SourceSpan | None = None
    """For a custom function: the `return` of its backward."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedFacts:
    """A tensor with a graph of an earlier step (or of build()) that this step read on the way to
    its loss."""

    name: str | None
    """The attribute or variable that holds it."""
    reader: OpFacts
    kept_at: SourceSpan | None
    node: str
    is_buffer: bool = False
    given_at: SourceSpan | None = None
    """The line that gave it to the network that reads it."""
    loop: SourceSpan | None = None
    """The loop whose iterations are the steps, where `kept_at` stands outside of it."""
    elsewhere: bool = False
    """`kept_at` stands in another function: whether the loop's steps run it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingFacts:
    """Something kept across steps whose graph grows. `nodes`: autograd nodes behind it, step by
    step."""

    name: str
    nodes: tuple[int, ...]
    kept_at: SourceSpan | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OverwriteFacts:
    """A tensor that one op saved for its derivative and another overwrote."""

    saved_by: OpFacts | None
    overwritten_by: OpFacts | None
    shape: tuple[int, ...]
    optimizer_call: SourceSpan | None = None
    """The `optimizer.step()` that overwrote it, if it was one."""
    leaf: str | None = None
    """The parameter that was overwritten, if it was one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientMismatch:
    """A custom function's backward returned a gradient whose shape or dtype isn't its input's."""

    op: OpFacts | None
    node: str
    position: int
    expected: str
    got: str
    returned_at: SourceSpan | None
    of_library: bool = False
    """The function is an installed library's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleEdge:
    """Module `source` made what module `target` read on the way to the loss. "batch" and "loss"
    stand at the ends."""

    source: str
    target: str
    carries: bool
    """Gradient flows back along it."""
    cut: bool
    """Here a gradient path ends that some parameter needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphFacts:
    """What a graph examination of one step found."""

    step: int
    parameters: tuple[ParameterState, ...]
    cuts: tuple[CutFacts, ...] = ()
    flat: tuple[CutFacts, ...] = ()
    """Ops with a derivative that is zero everywhere, on the only path of parameters whose gradient
    is exactly zero."""
    dead_terms: tuple[CutFacts, ...] = ()
    """Terms of the loss that depend on parameters and carry no gradient; `orphans` are those
    parameters."""
    losses: int = 0
    loss_needs_grad: bool = True
    loss_rewrapped: bool = False
    """The loss is a new leaf: backward() succeeds and reaches nothing."""
    loss_site: OpFacts | None = None
    carried: tuple[CarriedFacts, ...] = ()
    shared_reader: OpFacts | None = None
    """With several backward calls: the op through which an earlier loss used what the last needs
    too."""
    shared_given_at: SourceSpan | None = None
    """The line that gave what that op reads to the network that it belongs to."""
    freed_by: int = 0
    """Which of `backward_calls` freed what that op reads."""
    backward_calls: tuple[SourceSpan | None, ...] = ()
    same_loss: bool = False
    overwrite: OverwriteFacts | None = None
    leaf_write: str | None = None
    """The parameter that the failing in-place call would have written to."""
    mismatches: tuple[GradientMismatch, ...] = ()
    fresh_parameters: tuple[tuple[str, SourceSpan | None], ...] = ()
    """Parameters made during the step itself: (module type and name, the line)."""
    failed_again: bool = False
    verified: tuple[tuple[str, str], ...] = ()
    """Fixes tried by replay: (source span key of the cut, patched expression) with which every
    orphan got its gradient."""
    refuted: tuple[tuple[str, str], ...] = ()
    raised: tuple[tuple[str, str, str], ...] = ()
    """Of refuted fixes those with which the step raises: key, expression, and the error's type."""

    edges: tuple[ModuleEdge, ...] = ()
    """Who hands tensors to whom, by module; only where a picture was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnedParameter:
    """A trainable parameter that nobody updates, or an optimizer's tensor that the model doesn't
    have."""

    name: str
    module: str
    module_type: str
    shape: tuple[int, ...]
    gradient: float | None = None
    registered_at: SourceSpan | None = None
    optimizer_before: SourceSpan | None = None
    """It was made after the optimizers: the line that asked for the last of these."""
    loaded: bool = False
    """Its values came from a checkpoint during build()."""
    moved: bool = False
    """Something other than an optimizer changed it during the run."""


def unregistered_name(owner: str, attribute: str) -> str:
    """What a parameter in a plain container is called among what a step begins with."""
    return f"unregistered:{owner}.{attribute}".replace(":.", ":")


@dataclass(frozen=True, kw_only=True, slots=True)
class UnregisteredModule:
    """Modules or parameters that a module keeps in a plain container, out of reach of
    parameters()."""

    owner: str
    owner_type: str
    attribute: str
    container: str
    types: tuple[str, ...]
    parameters: int
    tensors: int
    assigned_at: SourceSpan | None
    with_gradient: int
    in_optimizer: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedModule:
    """One module object several times in a container of layers."""

    container: str
    container_type: str
    module_type: str
    positions: tuple[str, ...]
    parameters: int
    registered_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FrozenFacts:
    """What requires_grad says of the model."""

    frozen: int
    trainable: int
    tensors: tuple[str, ...]
    frozen_at: SourceSpan | None
    only_norms_train: bool = False
    head_frozen: str | None = None
    """The module that holds the last layers, where those are frozen, few and freshly initialised
    behind a larger part that trains."""
    head_frozen_parameter: str | None = None
    beside_adapters: bool = False
    """It is frozen with the whole model, for the adapters that peft has put in."""
    twice: tuple[str, str, SourceSpan | None] | None = None
    """(a name, another name, the line that froze it) of one module that the model holds under two
    names of one owner, frozen at fresh values while other layers train."""
    zero: tuple[str, ...] = ()
    """Weights of layers that are zero in every element, and stay so."""
    in_optimizer: bool = False
    ineffective: tuple[tuple[str, str, SourceSpan | None], ...] = ()
    """Modules on which `requires_grad` was set as a plain attribute: (path, type, line)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnershipFacts:
    """Who owns which parameter, judged when the run ended."""

    steps: int
    optimizers: tuple[SourceSpan | None, ...]
    idle: tuple[bool, ...] = ()
    """Of each of them: no parameter that it holds got a gradient."""
    shared: tuple[bool, ...] = ()
    """Of each of them: another optimizer holds all of its parameters, too."""
    missing: tuple[OwnedParameter, ...] = ()
    stale: tuple[OwnedParameter, ...] = ()
    numbers: int = 0
    """Single numbers of no module that an optimizer holds."""
    replaced_at: tuple[SourceSpan | None, ...] = ()
    unregistered: tuple[UnregisteredModule, ...] = ()
    repeated: tuple[RepeatedModule, ...] = ()
    frozen: FrozenFacts | None = None

    @property
    def neglected(self) -> list[OwnedParameter]:
        """Trainable parameters that receive gradients and that nothing updates."""
        return [p for p in self.missing if p.gradient and not p.moved]

    @property
    def twice_held(self) -> bool:
        """One of several optimizers was given the parameters of another, and the network that it
        was for is in none."""
        return any(self.shared) and bool(self.neglected)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeakFacts:
    """One sample was changed, and the model's output for others changed with it."""

    op: OpFacts
    kind: str
    """"recurrent", "attention", "softmax", "reshape" or "other"."""
    sample: int
    affected: int
    batch_size: int
    shapes: tuple[tuple[int, ...], ...] = ()
    built_at: SourceSpan | None = None
    """The line that made the layer."""
    layer_type: str | None = None
    independent: bool = False
    """The samples come from a data set one by one, so they are known to be independent."""
    unread: bool = False
    """No output of the model changed, not even that of the sample; the samples mix inside."""


# What torch says when a step fails for its graph, and the family of the failure.
_FAILURES = (
    ("does not require grad and does not have a grad_fn", "no-grad"),
    ("No inf checks were recorded for this optimizer", "no-inf-checks"),
    ("Trying to backward through the graph a second time", "backward-twice"),
    ("has been modified by an inplace operation", "overwritten"),
    ("a leaf Variable that requires grad", "leaf-write"),
    ("is a view and is being modified inplace", "view-write"),
    ("is a view and its base or another view of its base has been modified inplace", "view-write"),
    ("Inference tensors cannot be saved for backward", "inference"),
    ("Inplace update to inference tensor outside InferenceMode", "inference"),
    ("returned an invalid gradient", "gradient-shape"),
    ("returned an incorrect number of gradients", "gradient-shape"),
)


def graph_failure(message: str) -> str | None:
    """The family of a failure of the autograd graph, by torch's message; None for any other."""
    return next((family for text, family in _FAILURES if text in message), None)


def fix_key(location: SourceSpan | None, region: SourceSpan | None) -> str:
    """What ties a tried fix to its cut."""
    span = region or location
    return f"{span.place}:{span.column}" if span else ""
