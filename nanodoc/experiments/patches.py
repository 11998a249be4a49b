"""From what a fix proposes (`Remedy`) to the context manager that makes the change for one step.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch

from nanodoc.diagnosis import remedy as remedies
from nanodoc.experiments import call_site, precision
from nanodoc.experiments.call_site import Applied, Patch
from nanodoc.experiments.changed_input import input_changed
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.taps import AFTER_STEP, CLIP_GROUPS, TOTAL_NORM, listening
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper


@dataclass(frozen=True, slots=True)
class Patched:
    """What is patched, and whether the patch met anything to change."""

    runner: StepRunner
    keeper: StateKeeper
    applied: Applied

    @property
    def device(self) -> str:
        return self.runner.device.type


@singledispatch
def patch_for(remedy: remedies.Remedy, on: Patched) -> Patch | None:
    """The change that a remedy stands for; None where it lacks something, or can't be made on one
    step."""
    return None


@patch_for.register
def _(remedy: remedies.AutocastOff, on: Patched) -> Patch | None:
    return precision.autocast_in(None, on.applied)


@patch_for.register
def _(remedy: remedies.Bfloat16, on: Patched) -> Patch | None:
    return precision.autocast_in(torch.bfloat16, on.applied)


@patch_for.register
def _(remedy: remedies.Float32Module, on: Patched) -> Patch | None:
    module = dict(on.runner.recipe.model.named_modules()).get(remedy.module)
    return precision.float32_module(module, on.device, on.applied) if module is not None else None


@patch_for.register
def _(remedy: remedies.UnscaleFirst, on: Patched) -> Patch | None:
    scaler, optimizers = on.keeper.scaler, on.runner.recipe.optimizers
    if scaler is None:
        return None
    return unscaled_before_clipping(scaler, optimizers, on.applied)


@patch_for.register
def _(remedy: remedies.LossScale, on: Patched) -> Patch | None:
    if on.keeper.scaler is None:
        return None
    on.applied.yes = True  # the step's start holds the scale
    return contextlib.nullcontext()


@patch_for.register
def _(remedy: remedies.Initialise, on: Patched) -> Patch | None:
    if not remedy.parameters:
        return None
    return initialised(on.runner.recipe.model, remedy.parameters, on.applied)


@patch_for.register
def _(remedy: remedies.ClearGradients, on: Patched) -> Patch | None:
    return cleared_after_steps(on.applied)


@patch_for.register
def _(remedy: remedies.Float32Call, on: Patched) -> Patch | None:
    where = remedy.location
    return call_site.float32_call(where, on.device, on.applied) if where is not None else None


@patch_for.register
def _(remedy: remedies.ReplaceConstant, on: Patched) -> Patch | None:
    if remedy.location is None:
        return None
    before, after = remedy.value, remedy.replacement
    return call_site.constant_at(remedy.location, before, after, on.applied)


@patch_for.register
def _(remedy: remedies.ReplaceArgument, on: Patched) -> Patch | None:
    where, op = remedy.location, remedy.op
    if where is None or not op:
        return None
    return call_site.argument_at(where, op, remedy.position, remedy.template, on.applied)


@patch_for.register
def _(remedy: remedies.ChangeInput, on: Patched) -> Patch | None:
    where = remedy.location
    return input_changed(remedy, where, on.applied) if where is not None else None


@patch_for.register
def _(remedy: remedies.SetKeyword, on: Patched) -> Patch | None:
    where, op = remedy.location, remedy.op
    if where is None or not op:
        return None
    return call_site.keyword_at(where, op, remedy.keyword, remedy.value, on.applied)


@patch_for.register
def _(remedy: remedies.Bypass, on: Patched) -> Patch | None:
    if remedy.location is None or not remedy.op:
        return None
    return call_site.identity_at(remedy.location, remedy.op, on.applied)


_AT_CALL: Mapping[type[remedies.AtCall], Callable[[SourceSpan, Applied], Patch]] = {
    remedies.LogSoftmax: call_site.log_softmax_at,
    remedies.LogSumExp: call_site.logsumexp_at,
    remedies.KeptMean: call_site.kept_mean_at,
    remedies.EmptyMean: call_site.empty_mean_at,
    remedies.UnmaskRow: call_site.unmasked_at,
    remedies.LoneStatistics: call_site.lone_statistics_at,
}


@patch_for.register
def _(remedy: remedies.AtCall, on: Patched) -> Patch | None:
    """Those that need no more than the place."""
    make = _AT_CALL.get(type(remedy))
    if make is None or remedy.location is None:
        return None
    return make(remedy.location, on.applied)


@contextlib.contextmanager
def initialised(model: torch.nn.Module, names: Sequence[str], applied: Applied) -> Iterator[None]:
    """Parameters filled as torch's own layers would: Kaiming-uniform for weights of two and more
    dimensions (`nn.Linear`, `nn.Conv2d`), zeros otherwise. The random state is left alone."""
    parameters = [p for name, p in model.named_parameters() if name in names]
    before = [p.detach().clone() for p in parameters]
    state = torch.get_rng_state()
    for parameter in parameters:
        applied.yes = True
        values = torch.zeros(parameter.shape)
        if parameter.dim() >= 2:
            torch.nn.init.kaiming_uniform_(values, a=5**0.5)
        parameter.data.copy_(values)
    torch.set_rng_state(state)
    try:
        yield
    finally:
        for parameter, values in zip(parameters, before, strict=True):
            parameter.data.copy_(values)


@contextlib.contextmanager
def cleared_after_steps(applied: Applied) -> Iterator[None]:
    """Every optimizer's gradients are cleared when it has stepped."""

    def clear(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        applied.yes = True
        optimizer.zero_grad()

    with listening((AFTER_STEP, clear)):
        yield


@contextlib.contextmanager
def unscaled_before_clipping(
    scaler: Any, optimizers: list[torch.optim.Optimizer], applied: Applied
) -> Iterator[None]:
    """`scaler.unscale_` is called for every optimizer with gradients before torch's clipping looks
    at them."""

    def unscale() -> None:
        for optimizer in optimizers:
            ready = scaler._per_optimizer_states[id(optimizer)]["stage"].name == "READY"
            if ready and any(
                p.grad is not None for g in optimizer.param_groups for p in g["params"]
            ):
                applied.yes = True
                scaler.unscale_(optimizer)

    def before(original: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            unscale()
            return original(*args, **kwargs)

        return wrapped

    with listening((TOTAL_NORM, before), (CLIP_GROUPS, before)):
        yield
