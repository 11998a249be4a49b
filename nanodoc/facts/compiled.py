"""What a compiled part of a step computes beside what its source says. Plain, frozen, without
torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class ApartFacts:
    """The element of one tensor for which two computations are farthest apart."""

    compiled: float
    eager: float
    apart: float
    """The difference, relative to the largest value that the source computes for the tensor."""
    allowed: float
    """How far rounding may take them apart, in the same measure."""
    what: str = "output"
    """Which tensor: an output, or the gradient of an input or of a parameter by its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledOpFacts:
    """The first op of a compiled part that is not as the source has it."""

    name: str
    location: SourceSpan | None
    traced: bool
    """The graph that the compiler has traced computes what the source does not: another branch, a
    value of an earlier call. False where the graph is right, and its compiled code is not."""
    values: ApartFacts | None = None
    """Both values, where the graph is right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledFacts:
    """A part of the step, compiled by torch.compile, that gives other values than its source does
    on the same inputs, the same each time."""

    step: int
    part: str
    """The module's path in the model, or the function's name."""
    part_type: str | None
    """Of a module."""
    location: SourceSpan | None
    """The first line of its source."""
    values: ApartFacts
    op: CompiledOpFacts | None = None
    stale: bool = False
    """Compiled anew, it computes what its source says: it holds values of an earlier call."""
