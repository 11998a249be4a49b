"""The step that experiments are made on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nanodoc.experiments.experiments import Elsewhere
from nanodoc.facts.source import SourceSpan
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.step_state import StepState
from nanodoc.replay.weight_history import WeightHistory

_EARLY = 150
_FEWEST = 30  # steps: fewer show nothing of how a run goes


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

    def early(self) -> tuple[StepState, list[PastStep]] | None:
        """The start of the run's early steps, and up to 150 of them, to be run again with something
        changed; None where fewer than 30 can be."""
        found = self.checkpoints.stretch(_EARLY) if self.checkpoints is not None else None
        return found if found is not None and len(found[1]) >= _FEWEST else None
