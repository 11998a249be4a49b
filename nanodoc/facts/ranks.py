"""How the ranks of one distributed run fared, as facts. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan


def first_root(outcomes: Sequence[RankOutcome]) -> RankOutcome | None:
    """Of the ranks that failed by themselves, the one that did first; of one step, the lowest."""
    roots = [one for one in outcomes if one.ended in ROOTS and not one.peer]
    return (
        min(roots, key=lambda one: (one.step if one.step is not None else -1, one.rank))
        if roots
        else None
    )


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


@dataclass(frozen=True, kw_only=True, slots=True)
class RankAtStart:
    """Its place in the process group of its training, and its weights, before the first step."""

    rank: int
    world_size: int
    digests: tuple[tuple[str, str], ...] = ()
    """Of parameters that nothing keeps alike."""


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
    loss: float | None = None
    fingerprints: tuple[tuple[str, str], ...] = ()
    """(name, digest) of every parameter that is to be the same on all ranks, when the run was
    over."""
    before: tuple[tuple[str, str], ...] = ()
    """The same before the first step, where no DistributedDataParallel sees to it."""
    batches: tuple[tuple[int, str], ...] = ()
    """(step, digest) of the batches of some steps."""
    data_site: SourceSpan | None = None
    """Where its DataLoader was made."""


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
    ran_alone: bool = True
    """It ran its step again without the others."""
    location: SourceSpan | None = None
    """Where it stood still, or failed."""
    loss: float | None = None
    fingerprints: tuple[tuple[str, str], ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    batches: tuple[tuple[int, str], ...] = ()
    data_site: SourceSpan | None = None
    wrapped: bool = False
