"""Was it the initialisation? The steps of a run that diverged, or that began sure of wrong answers,
from step 0, with first weights that are no wider than He's, or than torch's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from nanodoc.experiments.past import Past, rose, spiked
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import late_loss, nearly_always_lower
from nanodoc.facts.rates import begins_sure, compared, far_below
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import WideWeights
from nanodoc.replay.rerun import Rerun
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.modules import WEIGHING
from nanodoc.tensors.sums import width_over_he

_WIDE = 1.5  # times He's standard deviation
_DEFAULT = math.sqrt(6.0)  # times narrower than He's: torch's own first weights of a layer
_EXTREME = 8.0
"""Times the standard deviation of torch's own first weights."""
_LOWER = 0.5  # of the first loss
_FAR_LOWER = 0.1  # of the first loss: the weights of step 0 alone cost the rest


def wide_weights(
    past: Past,
    model: nn.Module,
    first_loss: float,
    until: int,
    made_at: Callable[[str], SourceSpan | None],
) -> WideWeights | None:
    """The layers whose first weights were wider than sqrt(2 / fan_in) (He et al. 2015), where the
    steps up to `until` neither fail nor rise with narrower ones and the same learning rate, and
    begin at a tenth of `first_loss` and less; None otherwise. Layers that are added to what they
    are given bear less than He's width: torch's own is tried next. `made_at`: the line that gave a
    parameter its values."""
    for narrower in (1.0, _DEFAULT):
        found = _with_narrower(past, model, until, WEIGHING, narrower)
        if found is None:
            return None
        times, course = found
        if abs(course.losses[0]) > _FAR_LOWER * abs(first_loss):
            return None
        if course.complete and not rose(course) and not spiked(course, []):
            return _told(times, course, made_at, he=narrower == 1)
    return None


def sure_weights(
    past: Past,
    model: nn.Module,
    evidence: Evidence,
    made_at: Callable[[str], SourceSpan | None],
) -> WideWeights | None:
    """Those of a classification that stayed finite and began at twice what guessing costs and more,
    where the same steps begin lower and end far lower with narrower ones; None otherwise, or where
    no line of the user's gave them. An embedding counts as a layer: it may be the last one, too."""
    level, losses = begins_sure(evidence), compared(evidence)
    if level is None:
        return None
    found = _with_narrower(past, model, len(losses) - 1, (*WEIGHING, nn.Embedding))
    if found is None or not found[1].complete:
        return None
    times, course = found
    lower = course.losses[0] <= _LOWER * losses[0]
    if not lower or not far_below(losses, late_loss(course.losses), level):
        return None
    told = _told(times, course, made_at)
    return told if told.line is not None else None


def extreme_weights(
    past: Past,
    model: nn.Module,
    evidence: Evidence,
    made_at: Callable[[str], SourceSpan | None],
) -> WideWeights | None:
    """Those of layers whose first weights were many times as wide as torch's own, where nearly all
    of the same later steps are lower with weights as wide as these; None otherwise, or where no
    line of the user's gave them."""
    start, losses = past.first(), compared(evidence)
    times = far_from_default(model, start)
    if start is None or start.weights is None or not times:
        return None
    named = zip(model.named_parameters(), start.weights, strict=False)
    weights = [
        old / times[name] if old is not None and name in times else old for (name, _), old in named
    ]
    course = past.again_from(replace(start, weights=weights), len(losses) - 1)
    if course is None or not course.complete or not nearly_always_lower(losses, course.losses):
        return None
    told = replace(_told(times, course, made_at, he=False), own=True)
    return told if told.line is not None else None


def far_from_default(model: nn.Module, start: StepState | None) -> dict[str, float]:
    """The weights that were many times as wide as torch's own at the start of step 0: 1 / sqrt(3
    fan_in) for a layer, 1 for an embedding. By how many times."""
    if start is None or start.weights is None:
        return {}
    first = dict(zip((n for n, _ in model.named_parameters()), start.weights, strict=False))
    found = {}
    for path, module in model.named_modules():
        name = f"{path}.weight" if path else "weight"
        old = first.get(name)
        if old is None or old.dim() < 2 or old.numel() < 2 or not old.is_floating_point():
            continue
        if isinstance(module, nn.Embedding):
            times = float(old.float().std())
        elif isinstance(module, WEIGHING):
            times = (width_over_he(old) or 0.0) * _DEFAULT
        else:
            continue
        if times > _EXTREME:
            found[name] = times
    return found


def _with_narrower(
    past: Past,
    model: nn.Module,
    until: int,
    kinds: tuple[type[nn.Module], ...],
    narrower: float = 1.0,
) -> tuple[dict[str, float], Rerun] | None:
    """(the layers that were too wide, how the steps went with He's width, `narrower` times
    narrower)"""
    start = past.first()
    if start is None or start.weights is None:
        return None
    names = [name for name, _ in model.named_parameters()]
    times = dict(_times(model, dict(zip(names, start.weights, strict=False)), kinds))
    if not times:
        return None
    weights = [
        old / (times[name] * narrower) if old is not None and name in times else old
        for name, old in zip(names, start.weights, strict=False)
    ]
    course = past.again_from(replace(start, weights=weights), until)
    return (times, course) if course is not None and course.losses else None


def _told(
    times: dict[str, float],
    course: Rerun,
    made_at: Callable[[str], SourceSpan | None],
    *,
    he: bool = True,
) -> WideWeights:
    widest = max(times, key=lambda name: times[name])
    return WideWeights(
        name=widest,
        times=times[widest],
        layers=len(times),
        first_loss=course.losses[0],
        last_loss=late_loss(course.losses),
        line=made_at(widest),
        he=he,
    )


def _times(
    model: nn.Module, weights: dict[str, torch.Tensor | None], kinds: tuple[type[nn.Module], ...]
) -> list[tuple[str, float]]:
    """(name, standard deviation over He's) of the weights that are wider."""
    found = []
    for path, module in model.named_modules():
        name = f"{path}.weight" if path else "weight"
        old = weights.get(name)
        if not isinstance(module, kinds) or old is None or old.dim() < 2:
            continue
        spread = width_over_he(old) or 0.0
        if spread > _WIDE:
            found.append((name, spread))
    return found
