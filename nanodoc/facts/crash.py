"""What is known of a step, or of a batch, that ended in an exception. Like `evidence`: plain,
frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.calls import FromOutside
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenFacts(FromOutside):
    """One tensor given to the call that raised, and where it came from."""

    shape: tuple[int, ...]
    dtype: str
    device: str
    leaf: str | None = None
    """For what the step began with: `param:head.weight`, `batch[0]`."""
    made_by: str | None = None
    """Name of the call that made it."""
    made_at: SourceSpan | None = None
    """The user's line of that call; for a parameter, the line that made its layer."""
    module: str | None = None
    """The module that made it."""
    minimum: float | None = None
    maximum: float | None = None
    """Of floating values, those that are finite; None where none is."""
    nonfinite: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedCall:
    """The public torch function that raised."""

    name: str
    module: str | None
    module_type: str | None
    location: SourceSpan | None
    layer_at: SourceSpan | None
    """Where the layer was made that called it, where it is one of torch's own."""
    given: tuple[GivenFacts, ...] = ()
    settings: str = ""
    """What was given besides tensors, as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldTensor:
    """A tensor that autograd keeps for the backward pass."""

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    module: str | None
    location: SourceSpan | None
    count: int = 1
    """How many such tensors the line keeps; `bytes` is of all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFacts:
    """Who held how many bytes when no more could be had."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    buffers: int = 0
    batch: int = 0
    saved: int = 0
    """Activations that autograd keeps for the backward pass."""
    largest: tuple[HeldTensor, ...] = ()
    """By line, the largest first."""
    by_module: tuple[tuple[str, int], ...] = ()
    """(module, bytes saved in it), the largest first."""
    limit: int | None = None
    limit_of: str = ""
    batch_size: int | None = None

    @property
    def known(self) -> int:
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.buffers
            + self.batch
            + self.saved
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldFacts:
    """One field of the samples of a batch. `path` is written as Python would after a sample: `[1]`,
    `['boxes']`."""

    path: str
    sizes: tuple[tuple[int, ...] | str, ...]
    """Per sample: its shape, or the type of what is no tensor."""

    @property
    def ragged(self) -> bool:
        return len(set(self.sizes)) > 1

    @property
    def images(self) -> bool:
        """[channels, height, width] with up to four channels in every sample, or the channels
        last."""
        sizes = [size for size in self.sizes if isinstance(size, tuple)]
        return bool(sizes) and all(
            len(size) == 3
            and min(size[0], size[2]) <= 4
            and min(size[1:] if size[0] <= 4 else size[:2]) >= 8
            for size in sizes
        )

    @property
    def usual(self) -> tuple[int, ...] | str:
        """The size that most samples have; of equally many, the first."""
        return max(self.sizes, key=self.sizes.count)

    @property
    def odd(self) -> tuple[int, ...]:
        """Positions of the samples that differ from the first."""
        return tuple(i for i, size in enumerate(self.sizes) if size != self.sizes[0])


@dataclass(frozen=True, kw_only=True, slots=True)
class RaggedFacts:
    """The samples that could not be put together into a batch."""

    indices: tuple[int, ...]
    """Of the samples, in the data set."""
    fields: tuple[FieldFacts, ...]
    containers: str
    """What a sample is: "tuple", "dict", "tensor"."""
    own_collate: bool
    loader_at: SourceSpan | None
    """Where the DataLoader was made."""
    made_at: SourceSpan | None
    """The data set's `__getitem__`."""
    padded: str | None = None
    """How the step ended with the ragged field padded with zeros: "runs", or what it raised; None
    where it was not tried."""
    padded_loss: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadFacts:
    """A call of load_state_dict(strict=False) that left parameters as they were. Numbers are of
    tensors."""

    module_type: str
    location: SourceSpan | None
    own: int
    """Of the module."""
    given: int
    """Of the file."""
    matched: int
    left: tuple[str, ...]
    """Parameters that no load filled at all."""
    unexpected: tuple[str, ...]
    prefix: str = ""
    instead: str = ""
    """What should stand in place of the prefix that the file's names have."""
    would_match: int = 0
    """Tensors that fit by name and shape then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateFacts:
    """State of an optimizer that has another shape than its parameter."""

    parameter: str
    key: str
    shape: tuple[int, ...]
    wanted: tuple[int, ...]
    optimizer: int
    """Its place in the recipe."""
    odd: int
    """Parameters with such state."""
    count: int
    """Parameters with state."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftRange:
    """The op of the step whose result is out of a range, while what it was made of is not."""

    op: OpFacts
    low: float
    high: float
    """The smallest and the largest value that the lookup, the loss or the distribution takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrashFacts:
    """What a closer look at the exception showed."""

    call: FailedCall | None = None
    memory: MemoryFacts | None = None
    ragged: RaggedFacts | None = None
    batch_size: int | None = None
    usual_batch_size: int | None = None
    """That of the first batch."""
    indices: tuple[int, ...] = ()
    """Of the failing batch's samples, in the data set."""
    state: StateFacts | None = None
    reduced: tuple[str, ...] = ()
    """Names of the parameters whose gradients DistributedDataParallel reduces, in the order in
    which it counts them, where the error speaks of their numbers."""
    frozen: tuple[tuple[str, SourceSpan | None], ...] = ()
    """Those of them that do not require a gradient by now, with the line that switched it off."""
    left: LeftRange | None = None
    """Where the value that was refused left its range, where that was in the step."""
    spread: bool = False
    """The model is on several devices by their names, so that its step can't be run on the CPU."""
