"""What a script does beside its training steps. Like `evidence`: plain, frozen, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationFacts:
    """Batches of a data set that is not trained on, which the model read in training mode."""

    batch_norms: tuple[str, ...] = ()
    """Layers whose running statistics moved by them."""
    dropouts: tuple[str, ...] = ()
    """Layers that were in training mode with the whole model while random numbers were drawn."""
    drawn_at: SourceSpan | None = None
    """The loop over the batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaleFacts:
    """A part of the batches whose values have another scale in a validation than in the
    training."""

    part: str
    shape: tuple[int, ...]
    """Of a batch of the validation."""
    training: tuple[float, float]
    """Mean and standard deviation of a batch."""
    validation: tuple[float, float]
    made_at: SourceSpan | None = None
    """The line that made the validation's loader, else the one that draws from it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredFacts:
    """A model that was given its own tensors to load."""

    model: str
    """Its class."""
    tensors: int
    taken_at: SourceSpan | None
    """The line that asked for the state_dict."""
    loaded_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AveragedFacts:
    """Averaged weights that were copied into the model and stayed there."""

    kind: str
    """The class of the library that keeps the average."""
    times: int
    """How often the training went on with them."""
    copied_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class OverwrittenFacts:
    """A row of a tensor that was stored twice, and not read in between, each time."""

    name: str
    times: int
    differing: int
    """How often the second value was another than the first."""
    stored_at: SourceSpan | None
    overwritten_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnedFacts:
    """A network that is given its samples another way round while it is trained than while it is
    only asked."""

    network: str
    """Its path in the model; empty for the whole model."""
    shape: tuple[int, ...]
    """Of a sample."""
    how: str
    """What makes the two alike."""
    apart: float
    """Mean over the positions of (difference of the means / deviation)² and (difference of the
    variances / variance)², as they are given."""
    turned_apart: float
    """The same with one of them turned."""
    chance: float
    """The same of the differences between halves of the same samples."""
    samples: tuple[int, int]
    """While it is trained, and while it is asked."""
    trained_at: SourceSpan | None
    """The line that calls it while it is trained."""
    asked_at: SourceSpan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class AsideFacts:
    """All of it."""

    validation: ValidationFacts | None = None
    scale: ScaleFacts | None = None
    restored: RestoredFacts | None = None
    averaged: AveragedFacts | None = None
    overwritten: OverwrittenFacts | None = None
    turned: TurnedFacts | None = None
