"""Would a layer that is frozen at its first values help if it trained? The run's early steps are
run again with its parameters trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.plateau import comes_further, late_loss
from nanodoc.facts.trials import ThawedFacts


def fresh_and_frozen(trials: StepTrials, step: Step) -> list[str]:
    """The parameters that a line of the user's froze at their first values, and that an optimizer
    was given all the same."""
    recipe = trials.runner.recipe
    held = {id(p) for o in recipe.optimizers for group in o.param_groups for p in group["params"]}
    return [
        name
        for name, parameter in recipe.model.named_parameters()
        if not parameter.requires_grad and id(parameter) in held and step.frozen_at(name)
    ]


def thawed(trials: StepTrials, step: Step, losses: Sequence[float], say: Say) -> ThawedFacts | None:
    """How much lower early steps end with the frozen parameters trained; None where they do not,
    and where they can't be run again."""
    frozen = fresh_and_frozen(trials, step)
    found = step.early()
    line = step.frozen_at(frozen[0]) if frozen else None
    if found is None or line is None:
        return None
    start, steps = found
    named = trials.keeper.named
    flags = zip(named, start.trainable, strict=True)
    trained = [True if name in frozen else flag for (name, _), flag in flags]
    what = f"{frozen[0]} trained"
    say(f"trying {len(steps)} steps with {what} …")
    try:
        course = trials.course(replace(start, trainable=trained), steps, 0.3, what)
    finally:
        for name, parameter in named:
            if name in frozen:
                parameter.grad = None
    if course is None or not course.complete:
        return None
    own = losses[start.step : start.step + len(steps)]
    if not comes_further(own, course.losses):
        return None
    return ThawedFacts(
        parameters=tuple(frozen),
        location=line,
        steps=len(steps),
        loss=late_loss(own),
        trained=late_loss(course.losses),
    )
