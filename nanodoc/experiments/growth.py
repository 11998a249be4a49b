"""What had grown before a step broke: the loss, the gradients and the weights; and the line of the
step that raised the learning rate by hand, or that writes the weights that grew."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from nanodoc.accelerator import in_widest
from nanodoc.examination.lines_that import LineThatWrites
from nanodoc.experiments.trial import StepTrials
from nanodoc.facts.course import rise
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import UNBOUNDED, Growth, WrittenWeights
from nanodoc.replay.optimizers import rate_of
from nanodoc.replay.step_state import StepState
from nanodoc.replay.weight_history import WeightHistory

_LAST = 3  # steps before the one that broke
_GREW = 2.0  # RULES, ND606: a loss of twice its start
_ELSEWHERE = 1.5  # times a rate
_OUTGREW = 3.0
"""How much further than the weights of the optimizers others must have grown: an average of them
stays behind."""

_DIVERGED = 10.0  # times the loss at the start: when a finite run is worth being run again
_LAST_LOSSES = 5

Named = Sequence[tuple[str, torch.Tensor]]


def growth_until(
    evidence: Evidence,
    checkpoints: WeightHistory,
    weights: Named,
    trials: StepTrials,
    last: StepState,
) -> Growth:
    """What had grown until the step `last`, with the line of that step that made it so by hand.
    `weights` are what that step began with."""
    growth = _growth(evidence.losses, evidence.grad_norms, checkpoints, weights)
    if growth.raised and not trials.runner.recipe.schedulers:
        line = _rate_set_at(checkpoints, trials, last)
        # a scheduler that the step keeps to itself is no hand
        if line is None or not evidence.scheduler_sites or ".step(" not in line.code:
            growth = replace(growth, rate_set_at=line)
    return replace(growth, written=_written(checkpoints, weights, trials, last))


def _growth(
    losses: Sequence[float],
    norms: Sequence[float],
    checkpoints: WeightHistory,
    weights: Named,
) -> Growth:
    """What had grown until now: `losses` and `norms` are those of the whole run, `weights` what the
    last step began with."""
    finite = [abs(loss) for loss in losses if math.isfinite(loss)]
    sizes = [norm for norm in norms if math.isfinite(norm)]
    loss = max(finite[-_LAST:]) / finite[0] if len(finite) > 1 and finite[0] > 0 else None
    earlier = sizes[: max(len(sizes) - _LAST, 1)]
    norm = (
        max(sizes[-_LAST:]) / statistics.median(earlier)
        if len(sizes) > 1 and statistics.median(earlier) > 0
        else None
    )
    total, fastest, ratio, moved = _weights(checkpoints.first, weights)
    began = (
        next((i for i, loss in enumerate(finite) if loss > _GREW * finite[0]), None)
        if finite
        else None
    )
    given, highest, only = _rates(checkpoints, began)
    return Growth(
        loss=loss,
        norm=norm,
        weights=total,
        fastest=fastest,
        fastest_ratio=ratio,
        moved=moved,
        began=began,
        steps=len(finite),
        rate_given=given,
        rate_highest=highest,
        only_rate=only,
    )


def _rates(
    checkpoints: WeightHistory, began: int | None
) -> tuple[float | None, float | None, bool]:
    """The only optimizer's learning rate as it was given, the highest until the loss had begun to
    grow (a schedule may have raised it, and some schedules do so before the first step), and
    whether there was never another one; Nones where groups or optimizers differ."""
    optimizers = checkpoints.optimizers
    if len(optimizers) != 1 or not checkpoints.past:
        return None, None, False
    steps = [
        [float(rate) for rate in past.rates[0] if rate is not None] for past in checkpoints.past
    ]
    given = optimizers[0].defaults.get("lr")
    if not isinstance(given, (int, float)) or any(len(set(rates)) != 1 for rates in steps):
        return None, None, False
    until = [
        rates[0]
        for rates, past in zip(steps, checkpoints.past, strict=True)
        if began is None or past.step <= began + 1
    ] or [steps[0][0]]
    return float(given), max(until), all(rates[0] == given for rates in steps)


def _weights(
    first: StepState | None, now: Named
) -> tuple[float | None, str | None, float | None, float | None]:
    """(growth of all weights, the parameter that grew most, its growth, how far all weights have
    moved relative to their size); biases and zero-initialised parameters don't count alone."""
    if first is None or first.weights is None:
        return None, None, None, None
    before, after, way = 0.0, 0.0, 0.0
    best: tuple[float, str] | None = None
    with torch.no_grad():
        for (name, tensor), old in zip(now, first.weights, strict=True):
            if old is None or not tensor.is_floating_point():
                continue
            was, is_ = float(in_widest(old).norm()), float(in_widest(tensor).norm())
            before, after = math.hypot(before, was), math.hypot(after, is_)
            way = math.hypot(way, _distance(tensor, old))
            ratio = _ratio(is_, was)
            if ratio is not None and tensor.dim() >= 2 and (best is None or ratio > best[0]):
                best = (ratio, name)
    total = _ratio(after, before)
    moved = _ratio(way, before)
    return total, best[1] if best else None, best[0] if best else None, moved


def _distance(tensor: torch.Tensor, old: torch.Tensor) -> float:
    if tensor.shape != old.shape:  # a net that grew
        return float(in_widest(tensor).norm())
    return float((in_widest(tensor).to(old.device) - in_widest(old)).norm())


def _ratio(after: float, before: float) -> float | None:
    return after / before if before > 0 and math.isfinite(after) else None


def _rate_set_at(
    checkpoints: WeightHistory, trials: StepTrials, last: StepState
) -> SourceSpan | None:
    """The line of the step that sets the only optimizer's rate: with another rate when the
    user's code begins, the line after which it is changed."""
    [optimizer] = checkpoints.optimizers
    moved: list[float] = []

    def rate() -> float | None:
        group = optimizer.param_groups[0]
        if not moved and isinstance(group.get("lr"), float):
            group["lr"] *= _ELSEWHERE
            moved.append(group["lr"])
        return rate_of(group)

    with LineThatWrites(rate) as line:
        trials.outcome(last)
    return line.found


def _written(
    checkpoints: WeightHistory, now: Named, trials: StepTrials, last: StepState
) -> WrittenWeights | None:
    """Weights that no optimizer holds and that have grown far more than those of the optimizers,
    with the line of the step that writes them; None where there are none, or no line does."""
    first = checkpoints.first
    if first is None or first.weights is None:
        return None
    parameters = dict(trials.runner.recipe.model.named_parameters())
    ids = {
        id(parameter)
        for optimizer in checkpoints.optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    held = {name for name, parameter in parameters.items() if id(parameter) in ids}
    pairs = [
        (name, tensor, old)
        for (name, tensor), old in zip(now, first.weights, strict=True)
        if old is not None
        and tensor.is_floating_point()
        and tensor.shape == old.shape
        and tensor.is_contiguous()
    ]
    own = _times([pair for pair in pairs if pair[0] in held])
    others = [pair for pair in pairs if pair[0] in parameters and pair[0] not in held]
    ratio = _times(others)
    if own is None or ratio is None or ratio < _OUTGREW * max(own, 1.0):
        return None
    with torch.no_grad():
        name, tensor, old = max(others, key=lambda pair: _distance(pair[1], pair[2]))
        place = int((in_widest(tensor).to(old.device) - in_widest(old)).abs().argmax())
    flat = parameters[name].detach().view(-1)
    with LineThatWrites(lambda: flat[place].item()) as line:
        trials.outcome(last)
    if line.found is None:
        return None
    return WrittenWeights(name=name, times=ratio, others=own, line=line.found)


def _times(pairs: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> float | None:
    """The norm of all of them over what it was."""
    before, after = 0.0, 0.0
    for _, tensor, old in pairs:
        before = math.hypot(before, float(in_widest(old).norm()))
        after = math.hypot(after, float(in_widest(tensor.detach()).norm()))
    return _ratio(after, before)


def diverging(losses: Sequence[float]) -> str | None:
    """ "up" where the loss ends well above its start, "down" where it has fallen far below any
    likelihood."""
    if rise(losses) is not None:
        return "up"
    if len(losses) < 2 * _LAST_LOSSES or not all(map(math.isfinite, losses)):
        return None
    start, end = losses[0], statistics.median(losses[-_LAST_LOSSES:])
    if end < -UNBOUNDED * max(abs(start), 1.0):
        return "down"
    return "up" if start > 0 and end > _DIVERGED * start else None
