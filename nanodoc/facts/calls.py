"""The public torch functions that one step called: who made whose argument. Like `evidence`: plain,
frozen, without torch."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from nanodoc.facts.notes import NOTHING, CallNotes
from nanodoc.facts.source import SourceSpan
from nanodoc.vocabulary.calls import (
    ADDITIONS,
    ATTENTION,
    CASTS,
    CLAMPS,
    COPIES,
    DROPOUTS,
    EXPANSIONS,
    FACTORS,
    JOINS,
    MASKING,
    POWERS,
    RESHAPING,
    SQUASHERS,
    TAKES,
)

# Their outputs hold the values of their first input, arranged otherwise.
_SAME_VALUES = frozenset(
    (
        *COPIES,
        *CASTS,
        *JOINS,
        *TAKES,
        *EXPANSIONS,
        *RESHAPING,
        *DROPOUTS,
        *CLAMPS,
        "long",
        "cpu",
        "cuda",
        "repeat",
        "repeat_interleave",
        "mean",
        "pad",
        "roll",
    )
)
# They change every value by itself.
_ELEMENTWISE = frozenset(
    (
        *ADDITIONS,
        *FACTORS,
        *POWERS,
        *MASKING,
        *SQUASHERS,
        "neg",
        "abs",
        "sign",
        "sqrt",
        "exp",
        "log",
        "log1p",
        "relu",
        "leaky_relu",
        "gelu",
        "elu",
        "silu",
        "softplus",
    )
)


class FromOutside:
    """What the name of a tensor says that no call of the step made."""

    __slots__ = ()
    leaf: str | None

    @property
    def of_batch(self) -> bool:
        """It is a part of the batch, as it came."""
        return (self.leaf or "").startswith("batch")

    @property
    def parameter(self) -> str | None:
        """The name of the parameter of the model that it is."""
        kind, _, name = (self.leaf or "").partition(":")
        return name if kind == "param" else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgumentFacts(FromOutside):
    """One tensor argument of a call."""

    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    made_by: int | None = None
    """Position of the call that made it."""
    leaf: str | None = None
    """For what no call made: `param:head.weight`, `buffer:mask`, `batch[0]`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallFacts:
    """One call of a public function: `torch.*`, `torch.nn.functional.*`, a method or an operator of
    a tensor."""

    index: int
    name: str
    """Without underscores around it: `softmax`, `sub`, `getitem`."""
    module: str | None
    module_type: str | None
    location: SourceSpan | None
    called_from: SourceSpan | None
    """The user's own frame, when `location` lies in an installed library."""
    arguments: tuple[ArgumentFacts, ...]
    shape: tuple[int, ...]
    requires_grad: bool
    view: bool = False
    """The output shares its input's memory."""
    in_place: bool = False
    """The output is one of the arguments: `div_`, `/=`."""
    layer_at: SourceSpan | None = None
    """Where the layer that calls it was made, if that is one of torch's own in a Sequential: the
    line that runs names the Sequential only."""
    asked_by: SourceSpan | None = None
    """The user's call of the function that asks for a derivative."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What was given besides tensors, as far as rules ask for it: dim, reduction, ignore_index."""
    notes: CallNotes = NOTHING
    """What was measured of its values."""

    @property
    def same_values(self) -> bool:
        return self.view or self.name in _SAME_VALUES

    @property
    def site(self) -> SourceSpan | None:
        """The user's line."""
        return self.called_from or self.location

    @property
    def classes(self) -> int:
        """Of a loss among classes, how many there are; 0 for other calls."""
        return self.notes.labels.classes if self.notes.labels is not None else 0

    @property
    def reduction(self) -> str:
        """`sum`, `mean`, `none`: of a loss, which takes the mean where it is not told, or of a call
        that is a reduction by itself."""
        return self.name if self.name == "sum" else str(self.options.get("reduction", "mean"))


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCalls:
    """The calls of one step's forward, in order."""

    calls: tuple[CallFacts, ...] = ()
    losses: tuple[int, ...] = ()
    """Positions of the calls that made what was differentiated."""

    def maker(self, argument: ArgumentFacts) -> CallFacts | None:
        return self.calls[argument.made_by] if argument.made_by is not None else None

    def among_its_name(self, made: CallFacts) -> tuple[str, int]:
        """(its name, how many calls of that name come before it): by this it is known again when
        the step is run again."""
        return made.name, sum(one.name == made.name for one in self.calls[: made.index])

    def known_again(self, key: tuple[str, int]) -> CallFacts | None:
        """The call of which `among_its_name` tells this."""
        name, number = key
        named = (call for call in self.calls if call.name == name)
        return next(islice(named, number, None), None)

    def origin(
        self, argument: ArgumentFacts, *, elementwise: bool = False
    ) -> CallFacts | ArgumentFacts:
        """The call whose values these are, views and copies looked through; with `elementwise`,
        also what changes each value by itself. The argument itself where no call made it."""
        for _ in range(len(self.calls)):
            made = self.maker(argument)
            if made is None:
                return argument
            through = made.same_values or (elementwise and made.name in _ELEMENTWISE)
            inner = made.arguments[0] if made.arguments else None
            if elementwise and through and len(made.arguments) > 1:  # follow the one that learns
                inner = next(
                    (argument for argument in made.arguments if argument.requires_grad), inner
                )
            if not through or inner is None:
                return made
            argument = inner
        return argument

    def leaf(self, argument: ArgumentFacts, *, elementwise: bool = False) -> str | None:
        """The name of what no call made whose values these are: `batch[0]`, `param:head.weight`;
        None where a call made them."""
        made = self.origin(argument, elementwise=elementwise)
        return made.leaf if isinstance(made, ArgumentFacts) else None

    def path(self, argument: ArgumentFacts) -> Iterator[CallFacts]:
        """The calls between `origin` and the argument, the latest first."""
        for _ in range(len(self.calls)):
            made = self.maker(argument)
            if made is None or not made.same_values or not made.arguments:
                return
            yield made
            argument = made.arguments[0]

    def behind(
        self, made: CallFacts | ArgumentFacts, stop: Container[str] = ()
    ) -> tuple[set[int], list[ArgumentFacts]]:
        """(positions of the calls that something is made of, its own among them; what no call
        made). Nothing is looked for behind a call whose name is in `stop`."""
        seen = {made.index} if isinstance(made, CallFacts) else set()
        waiting = list(made.arguments) if isinstance(made, CallFacts) else [made]
        leaves = []
        while waiting:
            argument = waiting.pop()
            if argument.made_by is None:
                leaves.append(argument)
            elif argument.made_by not in seen:
                seen.add(argument.made_by)
                call = self.calls[argument.made_by]
                waiting += () if call.name in stop else call.arguments
        return seen, leaves

    def reaching_the_loss(self) -> frozenset[int]:
        """Positions of the calls that what was differentiated was made of."""
        seen: set[int] = set()
        waiting = list(self.losses)
        while waiting:
            index = waiting.pop()
            if index in seen:
                continue
            seen.add(index)
            waiting += [
                argument.made_by
                for argument in self.calls[index].arguments
                if argument.made_by is not None
            ]
        return frozenset(seen)


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeFacts:
    """Indices or labels of one call that are out of range."""

    function: str
    label: bool
    """They are class labels."""
    size: int
    """How many there are to choose from."""
    value: int
    """The first that is out of range."""
    position: tuple[int, ...]
    count: int
    minimum: int
    maximum: int
    """Smallest and largest of those out of range."""
    least: int
    """The smallest of all, but for a label that stands for none."""
    consecutive: bool
    """Each is one more than the one before: positions."""
    shape: tuple[int, ...]
    samples: tuple[int, ...]
    rows: int
    """`samples` are of so many rows: of the first dimension, or the bags of embedding_bag."""
    module: str | None
    module_type: str | None
    location: SourceSpan | None
    called_from: SourceSpan | None


def is_attention(call: CallFacts) -> bool:
    """A call of attention, or the softmax of one that is written by hand."""
    by_hand = call.name == "softmax" and len(call.shape) > 2 and call.shape[-1] == call.shape[-2]
    return call.name in ATTENTION or by_hand
