"""Would a nonlinear function between two linear layers help? The run's early steps are run again
with one there, for two linear layers with nothing between them compute what one of them could."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.linear_maps import JoinedLayers, joined_layers
from nanodoc.facts.plateau import comes_further, late_loss
from nanodoc.facts.trials import BetweenFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.trace.calls import plain_name
from nanodoc.trace.eager import run_eagerly

look_through(__file__)

_MOST = 3  # pairs of layers that are tried


def without_use(calls: StepCalls) -> list[JoinedLayers]:
    """The pairs of layers of which none is a bottleneck on purpose."""
    return [one for one in joined_layers(calls) if one.saves_nothing][:_MOST]


def between_layers(
    trials: StepTrials, step: Step, calls: StepCalls, losses: Sequence[float], say: Say
) -> BetweenFacts | None:
    """How much lower early steps end with ReLU between two linear layers; None where they do not,
    and where they can't be run again."""
    found = step.early()
    if found is None:
        return None
    start, steps = found
    own = losses[start.step : start.step + len(steps)]
    named = dict(trials.runner.recipe.model.named_parameters())
    for pair in without_use(calls):
        if (weight := named.get(pair.next_weight)) is None:
            continue
        say(f"trying {len(steps)} steps with relu between two linear layers …")
        # compiled code would run past the change
        with run_eagerly(), _RectifiedBefore(pair.layer.name, weight) as mode:
            course = trials.course(start, steps, 0.3, "relu between two linear layers")
        if course is None:
            return None
        if course.complete and mode.applied and comes_further(own, course.losses):
            return BetweenFacts(
                layers=pair,
                steps=len(steps),
                loss=late_loss(own),
                changed=late_loss(course.losses),
            )
    return None


class _RectifiedBefore(TorchFunctionMode):
    """The inputs of the layer with this weight, which calls that function, go through ReLU."""

    def __init__(self, name: str, weight: torch.Tensor) -> None:
        super().__init__()
        self._name, self._weight = name, weight
        self.applied = False

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if plain_name(func) == self._name and args:
            given = (*args[1:2], kwargs.get("weight"))
            if any(one is self._weight for one in given):
                self.applied = True
                args = (torch.relu(args[0]), *args[1:])
        return call(func, *args, **kwargs)
