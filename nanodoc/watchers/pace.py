"""Optimizers whose weights hardly move over a run, or stop moving in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import torch

from nanodoc.facts.loop import CreepingFacts, ParameterStats, StoppedFacts
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.optimizers import is_adaptive, rate_of

_SLOW = 5e-5
"""Of their size in a step, all weights together. In 55 trainings that go well they move by 1e-4 and
more. Fine-tuning moves weights less, but those were loaded."""
_SLOW_NUMBER = 5e-6
"""The same of optimizers that hold single numbers alone: temperatures move slowly on purpose."""
_SETTLED = 4.0  # times that, in one step
_TABLES = "Embedding"
_SHORTEST = 40  # steps
_SHARE = 0.5  # of the run
_FEWEST = 10  # steps
_STRONG = 0.05  # of the norm of the first gradients
_FELT = 0.01  # of the highest rate: below is the end of a schedule
_STEADY = 1.5  # times the median rate: what rises is a warm-up


def creeping(
    parameters: Sequence[ParameterStats],
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    rates: Sequence[tuple[float, ...]],
    steps: int,
    build: BuildFacts,
) -> tuple[CreepingFacts, ...]:
    """`steps`: how often each optimizer stepped."""
    highest = [max(step) for step in rates if step]
    if steps < _SHORTEST or not highest or highest[-1] > _STEADY * median(highest):
        return ()
    names = {id(p): name for name, p in model.named_parameters()}
    stats = {one.name: one for one in parameters}
    found = []
    for position, optimizer in enumerate(optimizers):
        held = [p for group in optimizer.param_groups for p in group["params"]]
        own = [names[id(p)] for p in held if id(p) in names]
        felt = [one for name in own if (one := stats.get(name)) is not None and one.grad_norm]
        # biases begin at zero, where any update is large
        weights = [one for one in felt if len(one.shape) > 1]
        slow = _SLOW if weights else _SLOW_NUMBER
        weights = weights or felt
        # a schedule notes the rate that it begins from, and may have ended at zero
        groups = optimizer.param_groups
        given = [
            max(rate_of(group) or 0.0, float(group.get("initial_lr") or 0.0)) for group in groups
        ]
        if not weights or any(name in build.loaded for name in own) or max(given) == 0:
            continue
        if all(one.module_type.startswith(_TABLES) for one in weights):
            continue  # a row of a table is seldom asked
        known = all(one.moved is not None and one.norm is not None for one in weights)
        # what has settled moved faster before
        settled = _together(weights, [one.fastest for one in weights]) > _SETTLED * slow
        settled = settled and slow == _SLOW  # a number near zero moves far for its size
        moved = _together(weights, [one.moved for one in weights])
        if known and not settled and 0 < moved < slow * steps:
            found.append(
                CreepingFacts(
                    optimizer=position,
                    parameter=max(weights, key=lambda one: one.moved or 0.0).name,
                    moved=moved,
                    steps=steps,
                    rate=max(given),
                    adaptive=is_adaptive(optimizer),
                )
            )
    return tuple(found)


def stopped(
    since: Mapping[str, int],
    norms: Mapping[str, float],
    early: Mapping[str, float],
    stepped: Mapping[int, int],
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    rates: Sequence[tuple[float, ...]],
) -> tuple[StoppedFacts, ...]:
    """`since` says from which step on a parameter has stayed as it is. `early` and `norms` are the
    norms of the gradients of the first step and of a late one. `stepped` says in which step each
    optimizer (by identity) was seen to step last. `rates` are those of all steps."""
    names = {id(p): name for name, p in model.named_parameters()}
    found = []
    until, given = len(rates) - 1, [max(step, default=0.0) for step in rates]
    for position, optimizer in enumerate(optimizers):
        held = [p for group in optimizer.param_groups for p in group["params"]]
        own = [names[id(p)] for p in held if id(p) in names and p.requires_grad]
        felt = [name for name in own if norms.get(name, 0.0) > 0]
        if not felt or not all(name in since for name in own):
            continue
        if _whole(norms, felt) < _STRONG * _whole(early, felt):
            continue  # it has converged: the steps are smaller than the weights' last digit
        begin = max(since[name] for name in own)
        lowest = min(given[begin:], default=0.0)
        long = until - begin >= max(_FEWEST, _SHARE * until)
        steps_on = stepped.get(id(optimizer), 0) > begin
        if begin > 0 and long and steps_on and lowest > _FELT * max(given):
            found.append(
                StoppedFacts(
                    optimizer=position,
                    parameters=tuple(felt),
                    since=begin,
                    until=until,
                    grad_norm=norms[felt[0]],
                    rate=lowest,
                )
            )
    return tuple(found)


def _whole(norms: Mapping[str, float], names: Sequence[str]) -> float:
    return math.hypot(*(norms.get(name, 0.0) for name in names))


def _together(weights: Sequence[ParameterStats], each: Sequence[float | None]) -> float:
    """How far all of them move, relative to the size of all, of what each moves relative to its
    own: one that began near zero moves far by little."""
    pairs = zip(weights, each, strict=True)
    change = math.hypot(*((far or 0.0) * (one.norm or 0.0) for one, far in pairs))
    size = math.hypot(*(one.norm or 0.0 for one in weights))
    return change / size if size > 0 else 0.0
