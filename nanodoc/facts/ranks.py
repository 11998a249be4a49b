"""How the ranks of one distributed run fared, as facts. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from nanodoc.facts.collectives import LastCollective
from nanodoc.facts.source import SourceSpan


def first_root(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """Of the ranks that failed by themselves, the one that did first; of one step, the lowest."""
    return min((one for one in outcomes if is_root(one)), key=order, default=None)


def is_root(outcome: RankOutcome) -> bool:
    """It failed by itself."""
    return outcome.ended in ROOTS and not outcome.peer


def with_roots(outcomes: Sequence[RankOutcome]) -> list[RankOutcome]:
    """The same, but where none failed by itself, and only some were sick, with a loss that was
    finite: there is no other that their sick gradients could have come from, so the first of them
    are roots."""
    sick = [one for one in outcomes if one.ended == CLEAN]
    if any(one.sharded for one in sick):
        return list(outcomes)  # each holds parts of what all have made together
    if not sick or len(sick) == len(outcomes) or any(map(is_root, outcomes)):
        return list(outcomes)
    first = min((one.step for one in sick if one.step is not None), default=None)
    return [
        replace(one, ended=SICK) if one in sick and one.step == first else one for one in outcomes
    ]


def order(outcome: RankOutcome) -> tuple[int, int, int]:
    """Whose report comes first: that of the first rank to fail by itself, or to be sick, or of the
    lowest."""
    step = outcome.step if outcome.step is not None else -1
    if is_root(outcome):
        return 0, step, outcome.rank
    return (1, step, outcome.rank) if outcome.ended == CLEAN else (2, 0, outcome.rank)


WELL, SICK, CLEAN, FAILED, DIED, HUNG, ENDED, LOST = (
    "well",
    "sick",
    "clean",
    "failed",
    "died",
    "hung",
    "ended",
    "lost",
)
"""Through all steps; sick by itself; NaN arrived from elsewhere; an exception; its process died; it
stood still; it was ended because it only waited for another; never heard of again."""
ROOTS = (SICK, FAILED, DIED, HUNG, LOST)


_MOST_SPANS = 8
_MOST_EXCEPTIONS = 3


def spans_of(ranks: Sequence[int]) -> str:
    """ "0, 2", "0–63 but 17"."""
    numbers = sorted(set(ranks))
    if len(numbers) > 2:
        lowest, highest = numbers[0], numbers[-1]
        missing = sorted(set(range(lowest, highest)) - set(numbers))
        if 0 < len(missing) <= min(_MOST_EXCEPTIONS, len(numbers) // 4):
            return f"{lowest}–{highest} but {', '.join(map(str, missing))}"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    texts = [
        f"{span[0]}–{span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans
    ]
    left = sum(len(span) for span in spans[_MOST_SPANS:])
    return ", ".join(texts[:_MOST_SPANS]) + (f" and {left} more" if left else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAtStart:
    """Its place in the process group of its training, and its weights, before the first step."""

    rank: int
    world_size: int
    digests: tuple[tuple[str, str], ...] = ()
    """Of parameters that several ranks may be meant to hold alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGradients:
    """Of the first step of a script, which was run again without the other ranks."""

    own: tuple[float, ...]
    """Projections of the rank's own gradients, as its backward pass left them."""
    used: tuple[float, ...]
    """The same of those that its optimizer stepped with."""
    mean: bool
    """What was differentiated is a mean, as the loss function gave it."""
    divisor: float
    """What such a mean was divided by; 0 for nothing."""
    divided_at: SourceSpan | None = None
    """The line that divides gradients, or else the loss, by the number of ranks."""
    summed_at: SourceSpan | None = None
    """The line that reduces gradients over the ranks by hand."""
    counted: int = 0
    """Labels that the loss is the mean of, where it is a mean of cross-entropies."""
    left_out: int = 0
    """Labels that it ignores."""
    loss_at: SourceSpan | None = None
    """Where scores are compared with them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningChannels:
    """What a BatchNorm layer keeps of the batches that it saw."""

    layer: str
    means: tuple[float, ...]
    """Running means of its first channels."""
    deviations: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankStep:
    """Digests of one step of a rank, by parameter; 0 where there was nothing to digest."""

    step: int
    rates: tuple[float, ...]
    """The learning rates of all groups of its optimizers."""
    collectives: int | None
    """How many were entered in the step before its optimizer stepped; None where that is not
    known."""
    through: bool
    """The step called a DistributedDataParallel."""
    begin: tuple[int, ...]
    """Of the weights, before the step."""
    backward: tuple[int, ...]
    """Of the gradients, when the step's last backward pass had ended, or before they were clipped
    by their norm."""
    used: tuple[int, ...]
    """Of those that its optimizer stepped with."""
    stepped: tuple[int, ...]
    """Of the weights, when the optimizer had stepped."""
    end: tuple[int, ...]
    """Of the weights, at the end of the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCourse:
    """What a rank's gradients and weights were at some steps."""

    names: tuple[str, ...]
    """Of the parameters that are no shards."""
    steps: tuple[RankStep, ...]
    wrapped: tuple[bool, ...] = ()
    """Of each: a DistributedDataParallel over all ranks keeps it the same."""
    kept_apart: bool = False
    """A communication hook, or `no_sync()`, lets the ranks step by themselves."""
    cast_at: SourceSpan | None = None
    """The line that last changed the dtype of the first parameter."""
    clipped_at: SourceSpan | None = None
    """The line that clips gradients by their norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtGroupEnd:
    """Of a rank, when the training left its process group."""

    fingerprints: tuple[tuple[str, str], ...]
    """As in `RankFacts`."""
    running: tuple[RunningChannels, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFile:
    """A file that a rank saved or read."""

    path: str
    """Absolute, without links."""
    location: SourceSpan | None = None
    """The user's line."""
    began: int | None = None
    """How many collectives the rank had entered by then; None where that is not known."""
    ended: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalClip:
    """Clips by the norm of a rank's own part of the gradients."""

    times: int
    norm: float
    """Of the first one, on this rank."""
    at: SourceSpan | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """What a rank knows of itself when its run is over."""

    rank: int
    world_size: int
    host: str
    wrapped: bool = False
    """Its model is a DistributedDataParallel."""
    grouped: bool = False
    """It is in a process group with the others."""
    own: str = WELL
    """WELL, SICK, CLEAN or FAILED."""
    peer: bool = False
    """Its error is that another rank left it, or did not answer."""
    ran_alone: bool = True
    """It ran its step again without the others."""
    step: int | None = None
    """The step it tripped or failed in."""
    phase: str = ""
    sharded: bool = False
    """It holds parts of parameters, and of gradients that all ranks have made."""
    whole_size: int = 0
    """Bytes of all parameters of the whole model, where this rank holds parts of them."""
    loss: float | None = None
    fingerprints: tuple[tuple[str, str], ...] = ()
    """(name, digest) of every parameter that is to be the same on all ranks, when the run was
    over."""
    before: tuple[tuple[str, str], ...] = ()
    """The same before the first step."""
    batches: tuple[tuple[int, str], ...] = ()
    """(step, digest) of the batches of some steps."""
    data_site: SourceSpan | None = None
    """Where its DataLoader was made."""
    saved: tuple[RankFile, ...] = ()
    loaded: tuple[RankFile, ...] = ()
    gradients: RankGradients | None = None
    running: tuple[RunningChannels, ...] = ()
    collectives: tuple[LastCollective, ...] = ()
    course: RankCourse | None = None

    def for_all(self) -> dict[str, Any]:
        """What the rules ask of all ranks together: fields of `RankOutcome`."""
        names = "ran_alone fingerprints before batches data_site saved loaded wrapped gradients"
        more = "running sharded whole_size collectives course"
        return {name: getattr(self, name) for name in f"{names} {more}".split()}


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """How a rank ended, as the merged report tells it."""

    rank: int
    host: str = ""
    ended: str = WELL
    steps: int = 0
    step: int | None = None
    phase: str = ""
    why: str = ""
    """The title of its first finding, or its error."""
    peer: bool = False
    """Its error is that another rank left it, or did not answer."""
    waits: bool = False
    """It was inside a collective when it was ended, or left."""
    aborted: bool = False
    """A thread that is none of Python's called abort() meanwhile (SIGABRT): a backend's own."""
    ran_alone: bool = True
    """It ran its step again without the others."""
    sharded: bool = False
    """As in `RankFacts`."""
    whole_size: int = 0
    """As in `RankFacts`."""
    location: SourceSpan | None = None
    """Where it stood still, or failed."""
    loss: float | None = None
    fingerprints: tuple[tuple[str, str], ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    batches: tuple[tuple[int, str], ...] = ()
    data_site: SourceSpan | None = None
    saved: tuple[RankFile, ...] = ()
    loaded: tuple[RankFile, ...] = ()
    wrapped: bool = False
    gradients: RankGradients | None = None
    course: RankCourse | None = None
    running: tuple[RunningChannels, ...] = ()
    stack: tuple[SourceSpan, ...] = ()
    """Where it stood still: the user's lines, outermost first."""
    collectives: tuple[LastCollective, ...] = ()
    """The last ones that it entered, one of each process group, the last of them last."""
