"""From what a fix proposes (`Remedy`) to the context manager that makes the change for one step.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.utils.clip_grad as clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook

from nanodoc.diagnosis.finding import Remedy
from nanodoc.experiments import call_site, precision
from nanodoc.experiments.call_site import Applied, Patch
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper

IN_ANOTHER_DTYPE = ("float32-module", "float32-call", "bfloat16")


def patch_for(
    remedy: Remedy, runner: StepRunner, keeper: StateKeeper, applied: Applied
) -> Patch | None:
    """The change a remedy stands for; None where it lacks something, or can't be made on one
    step."""
    device, model = runner.device.type, runner.recipe.model
    kind, where = remedy.kind, remedy.location
    if kind == "autocast-off":
        return precision.autocast_in(None, applied)
    if kind == "bfloat16":
        return precision.autocast_in(torch.bfloat16, applied)
    if kind == "float32-module":
        module = dict(model.named_modules()).get(remedy.module or "")
        return precision.float32_module(module, device, applied) if module is not None else None
    if kind == "unscale-first" and keeper.scaler is not None:
        return unscaled_before_clipping(keeper.scaler, runner.recipe.optimizers, applied)
    if kind == "loss-scale" and keeper.scaler is not None:
        applied.yes = True
        return contextlib.nullcontext()
    if kind == "initialise" and remedy.parameters:
        return initialised(model, remedy.parameters, applied)
    if kind == "clear-gradients":
        return cleared_after_steps(applied)
    return _at_call(remedy, device, applied) if where is not None else None


def _at_call(remedy: Remedy, device: str, applied: Applied) -> Patch | None:
    kind, where, op = remedy.kind, remedy.location, remedy.op or ""
    assert where is not None
    if kind == "float32-call":
        return call_site.float32_call(where, device, applied)
    if kind == "constant" and remedy.value is not None and remedy.replacement is not None:
        return call_site.constant_at(where, remedy.value, remedy.replacement, applied)
    if kind == "argument" and op and remedy.template is not None:
        return call_site.argument_at(where, op, remedy.position, remedy.template, applied)
    if kind == "identity" and op:
        return call_site.identity_at(where, op, applied)
    if kind == "keyword" and op and remedy.keyword is not None:
        return call_site.keyword_at(where, op, remedy.keyword, bool(remedy.value), applied)
    simple = {
        "log-softmax": call_site.log_softmax_at,
        "logsumexp": call_site.logsumexp_at,
        "kept-mean": call_site.kept_mean_at,
        "empty-mean": call_site.empty_mean_at,
        "unmask-row": call_site.unmasked_at,
        "lone-statistics": call_site.lone_statistics_at,
    }.get(kind)
    return simple(where, applied) if simple is not None else None


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

    hook = register_optimizer_step_post_hook(clear)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def unscaled_before_clipping(
    scaler: Any, optimizers: list[torch.optim.Optimizer], applied: Applied
) -> Iterator[None]:
    """`scaler.unscale_` is called for every optimizer with gradients before torch's clipping looks
    at them."""
    inner: Any = clip_grad  # the functions that both of torch's clips call first are not exported
    norm, group = inner._get_total_norm, inner._group_tensors_by_device_and_dtype

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

    inner._get_total_norm, inner._group_tensors_by_device_and_dtype = before(norm), before(group)
    try:
        yield
    finally:
        inner._get_total_norm, inner._group_tensors_by_device_and_dtype = norm, group
