"""What kept a run from learning? Its first steps are run again without clipping, without weight
decay, and with far larger learning rates; everything is put back afterwards."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.plateau import late_loss, nearly_always_lower
from nanodoc.facts.rates import COMPARED, LONG_ENOUGH, far_lower
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import CLIPPING, RATE, WEIGHT_DECAY, HeldBackFacts
from nanodoc.instrument.taps import CLIP_BY_NORM, CLIP_BY_VALUE, CLIP_BY_VALUE_EXPORTED, listening
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.step_state import StepState
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.trace.spans import Place, calling_places, resolved

_FACTORS = (100.0, 1000.0, 1e4, 10.0, 1e6)
_ENORMOUS = (1e6,)
"""In a run that is too short to tell of others."""
_LEAST_DECAY = 1e-3  # a smaller one holds nothing back
_CLIPPING = "without gradient clipping"
_HARMLESS = 0.1  # of the gradient norm: a clip that lets a tenth through is no brake


class HeldBack:
    """One run's trials with larger updates."""

    def __init__(
        self, trials: StepTrials, checkpoints: WeightHistory, say: Say, *, creeping: bool
    ) -> None:
        """`creeping`: the weights hardly move, which shows in a short run, too."""
        self._trials = trials
        self._checkpoints = checkpoints
        self._say = say
        self._creeping = creeping

    def facts(self, losses: Sequence[float]) -> HeldBackFacts | None:
        """The first thing without which the run's first steps end at a far lower loss. None where
        nothing does, or where they can't be run again."""
        found = self._checkpoints.stretch(COMPARED)
        if found is None or found[0].step:  # it is told of the first steps
            return None
        start, steps = found
        own = losses[start.step : start.step + len(steps)]
        if len(own) < LONG_ENOUGH and not self._creeping:
            return self._faster(start, steps, own, _ENORMOUS)
        return (
            self._without_clipping(start, steps, own)
            or self._without_decay(start, steps, own)
            or self._faster(start, steps, own, _FACTORS)
        )

    def _without_clipping(
        self, start: StepState, steps: list[PastStep], own: Sequence[float]
    ) -> HeldBackFacts | None:
        # whether anything clips is not known before a step
        with _unclipped() as clips:
            self._trials.course(start, steps[:1], 0.2, _CLIPPING)
            if not clips.seen or clips.limit > _HARMLESS * clips.norm:
                return None
            late = self._late(_CLIPPING, start, steps, own)
        if late is None:
            return None
        return HeldBackFacts(
            kind=CLIPPING,
            value=clips.limit,
            steps=len(steps),
            loss=late_loss(own),
            without=late,
            site=clips.site,
            norm=clips.norm,
        )

    def _without_decay(
        self, start: StepState, steps: list[PastStep], own: Sequence[float]
    ) -> HeldBackFacts | None:
        given = {
            float(group.get("weight_decay") or 0.0)
            for groups in steps[0].options
            for group in groups
        }
        if not given or max(given) < _LEAST_DECAY:
            return None
        late = self._late("without weight decay", start, steps, own, options={"weight_decay": 0.0})
        if late is None:
            return None
        value = max(given) if len(given) == 1 else None
        return HeldBackFacts(
            kind=WEIGHT_DECAY, value=value, steps=len(steps), loss=late_loss(own), without=late
        )

    def _faster(
        self,
        start: StepState,
        steps: list[PastStep],
        own: Sequence[float],
        factors: Sequence[float],
    ) -> HeldBackFacts | None:
        given = self._checkpoints.optimizers[0].defaults.get("lr")
        groups = [rates for past in steps for rates in past.rates]
        # groups with rates of their own have no number that stands for all
        alone = all(len(rates) == 1 for rates in groups) and isinstance(given, float)
        for factor in factors if any(map(any, groups)) else ():
            late = self._late(f"learning rate × {factor:g}", start, steps, own, rate=factor)
            if late is not None:
                return HeldBackFacts(
                    kind=RATE,
                    value=given if alone and [given] in groups else None,
                    steps=len(steps),
                    loss=late_loss(own),
                    without=late,
                    factor=factor,
                )
        return None

    def _late(
        self,
        what: str,
        start: StepState,
        steps: list[PastStep],
        own: Sequence[float],
        **change: Any,
    ) -> float | None:
        """The late loss of the steps with this change, where it is far below the run's own."""
        self._say(f"trying {what} from step 0 …")
        course = self._trials.course(start, steps, 0.3, what, **change)
        if course is None or not course.complete:
            return None
        late = late_loss(course.losses)
        # of weights that stay where they began, any way down shows on the same batches
        lower = self._creeping and nearly_always_lower(own, course.losses)
        return late if lower or far_lower(own, late) else None


class _Clips:
    """The calls that would have clipped."""

    def __init__(self) -> None:
        self._norms: list[float] = []
        self._limits: list[float] = []
        self._place: Place | None = None

    def note(self, limit: float, norm: torch.Tensor) -> None:
        own, caller = calling_places(3)
        self._place = self._place or caller or own
        self._norms.append(float(norm))
        self._limits.append(float(limit))

    @property
    def seen(self) -> bool:
        return bool(self._norms)

    @property
    def norm(self) -> float:
        """The median norm, or largest value, before clipping."""
        return statistics.median(self._norms)

    @property
    def limit(self) -> float:
        return statistics.median(self._limits)

    @property
    def site(self) -> SourceSpan | None:
        return resolved(self._place)


@contextlib.contextmanager
def _unclipped() -> Iterator[_Clips]:
    """Inside, torch's clipping by norm and by value measures, and changes nothing."""
    clips = _Clips()

    def measured(
        parameters: Any, limit: float, norm: torch.Tensor, *more: Any, **named: Any
    ) -> None:
        clips.note(limit, norm)

    def largest(parameters: Any, limit: float, *more: Any, **named: Any) -> None:
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        sizes = [p.grad.abs().max() for p in given if p.grad is not None and p.grad.numel()]
        if sizes:
            clips.note(limit, torch.stack(sizes).max())

    with listening(
        (CLIP_BY_NORM, lambda original: measured),
        (CLIP_BY_VALUE, lambda original: largest),
        (CLIP_BY_VALUE_EXPORTED, lambda original: largest),
    ):
        yield clips
