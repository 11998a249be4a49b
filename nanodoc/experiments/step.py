"""The step that experiments are made on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanodoc.experiments.experiments import Elsewhere
from nanodoc.facts.source import SourceSpan
from nanodoc.replay.step_state import StepState
from nanodoc.replay.weight_history import WeightHistory


@dataclass(frozen=True, slots=True)
class Step:
    """The step that experiments are made on, and what the run knows besides."""

    capsule: StepState
    elsewhere: Elsewhere
    checkpoints: WeightHistory | None = None
    half: bool = False
    indices: Sequence[int] | None = None
    initialised_at: Callable[[str], SourceSpan | None] = lambda name: None
    """The user's line that gave a parameter its values."""
    frozen_at: Callable[[str], SourceSpan | None] = lambda name: None
    """The user's line that froze a parameter at values that no checkpoint gave it."""
