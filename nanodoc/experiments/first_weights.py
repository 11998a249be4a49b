"""Was it the initialisation? The steps of a run that diverged, from step 0, with first weights that
are no wider than He's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from nanodoc.experiments.past import Past, rose, spiked
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import WideWeights
from nanodoc.tensors.sums import width_over_he

_LAYERS = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
_WIDE = 1.5  # times He's standard deviation
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
    begin at a tenth of `first_loss` and less; None otherwise. `made_at`: the line that gave a
    parameter its values."""
    start = past.first()
    if start is None or start.weights is None:
        return None
    names = [name for name, _ in model.named_parameters()]
    times = dict(_times(model, dict(zip(names, start.weights, strict=False))))
    if not times:
        return None
    narrower = [
        old / times[name] if old is not None and name in times else old
        for name, old in zip(names, start.weights, strict=False)
    ]
    course = past.again_from(replace(start, weights=narrower), until)
    if course is None or not course.complete or not course.losses:
        return None
    if abs(course.losses[0]) > _FAR_LOWER * abs(first_loss) or rose(course) or spiked(course, []):
        return None
    widest = max(times, key=lambda name: times[name])
    return WideWeights(
        name=widest,
        times=times[widest],
        layers=len(times),
        first_loss=course.losses[0],
        last_loss=late_loss(course.losses),
        line=made_at(widest),
    )


def _times(model: nn.Module, weights: dict[str, torch.Tensor | None]) -> list[tuple[str, float]]:
    """(name, standard deviation over He's) of the weights that are wider."""
    found = []
    for path, module in model.named_modules():
        name = f"{path}.weight" if path else "weight"
        old = weights.get(name)
        if not isinstance(module, _LAYERS) or old is None or old.dim() < 2:
            continue
        spread = width_over_he(old) or 0.0
        if spread > _WIDE:
            found.append((name, spread))
    return found
