"""Whether a run that diverged would have learnt with the mean of its loss."""

from __future__ import annotations

from dataclasses import replace

import torch

from nanodoc.examination.loss_scale import LossScaleLook
from nanodoc.experiments.past import Past, rose
from nanodoc.experiments.trial import StepTrials
from nanodoc.facts.trials import LossScale
from nanodoc.trace.eager import run_eagerly

_LINEAR = {"SGD"}  # a smaller loss is a smaller step, as large as with a smaller rate


def loss_scale(
    past: Past,
    trials: StepTrials,
    optimizers: list[torch.optim.Optimizer],
    until: int,
) -> LossScale | None:
    """What makes the loss larger than a mean, where the steps up to `until` learn with the rates
    that much lower. None for optimizers whose steps do not grow with the loss."""
    if not optimizers or any(type(o).__name__ not in _LINEAR for o in optimizers):
        return None
    start = past.first()
    if start is None:
        return None
    with run_eagerly(), LossScaleLook() as look:
        trials.outcome(start)  # the last batch of all may be a small rest
    found: LossScale | None = look.found
    if found is None:
        return None
    course = past.again_from(start, until, rate=1 / found.times)
    if course is None or not course.complete or rose(course):
        return None
    return replace(found, last_loss=course.losses[-1])
