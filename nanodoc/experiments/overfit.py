"""Can the model fit one batch? Training on a single batch, and on the same with its inputs zeroed,
from the weights of step 0; everything is put back afterwards."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.calls import ArgumentFacts, StepCalls
from nanodoc.facts.inspection import InspectionFacts
from nanodoc.facts.loop import OverfitFacts
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.rerun import Rerun
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.tensors.nested import map_tensors, tensor_leaves
from nanodoc.vocabulary.calls import LAYERS, SUPERVISED

_STEPS = 60
_LAST = 3
_LITTLE = 0.9
_FASTER = (10.0, 100.0)
_TAKES = frozenset((*LAYERS, "multi_head_attention_forward"))
_COMPARES = frozenset((*SUPERVISED, "sub", "eq", "gather"))


class Overfit:
    """One run's trials on a single batch."""

    def __init__(self, trials: StepTrials, checkpoints: WeightHistory, say: Say) -> None:
        self._trials = trials
        self._checkpoints = checkpoints
        self._say = say

    def facts(self, steps: int = _STEPS) -> OverfitFacts | None:
        """The last batch alone; None where its step or the weights of step 0 are gone, or time runs
        out."""
        past = self._last()
        if past is None:
            return None
        self._say(f"training on one batch for {steps} steps …")
        course = self._run(past, steps)
        if course is None:
            return None
        first, last = course.losses[0], statistics.median(course.losses[-_LAST:])
        for rate in _FASTER:  # a small learning rate is no reason to say that nothing can be learnt
            if last <= _LITTLE * first:
                break
            faster = self._run(past, steps, rate=rate)
            last = (
                min(last, statistics.median(faster.losses[-_LAST:])) if faster is not None else last
            )
        return OverfitFacts(steps=steps, first=first, last=last)

    def asked_for(
        self, inspection: InspectionFacts | None, losses: Sequence[float]
    ) -> OverfitFacts:
        """Of a run on one batch alone, with its control."""
        zeroed, paths = self.control(inspection, len(losses))
        facts = OverfitFacts(
            steps=len(losses),
            first=losses[0],
            last=statistics.median(losses[-_LAST:]),
            zeroed_last=zeroed,
            zeroed=paths,
            asked=True,
        )
        return facts if facts.fits else replace(facts, faster_last=self.faster(len(losses)))

    def faster(self, steps: int) -> float | None:
        """The loss that the batch alone ends at with ten times the learning rate."""
        past = self._last()
        course = self._run(past, steps, rate=_FASTER[0]) if past is not None else None
        return statistics.median(course.losses[-_LAST:]) if course is not None else None

    def control(
        self, inspection: InspectionFacts | None, steps: int
    ) -> tuple[float | None, tuple[str, ...]]:
        """(the loss after `steps` on the batch with its inputs zeroed, the inputs' paths); None
        where inputs can't be told from targets."""
        past = self._last()
        inputs = inputs_of(inspection.calls) if inspection is not None else ()
        if past is None or not inputs:
            return None, ()
        self._say(f"training on one batch with {', '.join(inputs)} zeroed …")
        course = self._run(replace(past, batches=[_zeroed(past.batches, inputs)]), steps)
        return (statistics.median(course.losses[-_LAST:]) if course is not None else None), inputs

    def _last(self) -> PastStep | None:
        past = self._checkpoints.past
        return past[-1] if past and past[-1].intact and len(past[-1].batches) == 1 else None

    def _run(self, past: PastStep, steps: int, rate: float = 1.0) -> Rerun | None:
        start = self._checkpoints.first
        if start is None:
            return None
        # a warm-up's first rate, or a decay's last, teaches nothing
        rates = max((state.rates for state in self._checkpoints.past), key=_size)
        # other random numbers in every step: one and the same dropout mask would tell samples apart
        # without their inputs
        states = [state.rng for state in self._checkpoints.past]
        stretch = [replace(past, rates=rates, rng=states[i % len(states)]) for i in range(steps)]
        course = self._trials.course(start, stretch, 0.5, "one batch alone", rate=rate)
        well = course is not None and course.complete and all(map(math.isfinite, course.losses))
        return course if well else None


def _size(rates: list[list[float | torch.Tensor | None]]) -> float:
    return sum(float(rate) for group in rates for rate in group if rate is not None)


def inputs_of(calls: StepCalls) -> tuple[str, ...]:
    """Paths of the parts of the batch that layers take and that no loss compares with."""
    taken, compared = set(_leaves(calls, _TAKES, 0)), set(_leaves(calls, _COMPARES, 1))
    return tuple(sorted(taken)) if taken and compared and not taken & compared else ()


def _leaves(calls: StepCalls, names: frozenset[str], position: int) -> Iterator[str]:
    for call in calls.calls:
        if call.name not in names or len(call.arguments) <= position:
            continue
        for argument in call.arguments[: position + 1] if position == 0 else call.arguments:
            made = calls.origin(argument, elementwise=True)
            if isinstance(made, ArgumentFacts) and made.of_batch:
                yield made.leaf or ""


def _zeroed(batches: list[Any], paths: tuple[str, ...]) -> Any:
    """A copy of the batch with these parts zero; everything else as it is."""
    batch = batches[0]
    wanted = {id(tensor) for path, tensor in tensor_leaves(batch) if path in paths}
    return map_tensors(
        batch, lambda tensor: torch.zeros_like(tensor) if id(tensor) in wanted else tensor
    )
