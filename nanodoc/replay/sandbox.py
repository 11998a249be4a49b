"""Looks that run the step again when the run is over, and leave everything as they found it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator

import torch

from nanodoc.instrument.taps import SHOW_WARNING, listening
from nanodoc.replay.closure_state import KeptState
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StateKeeper, copy_weights
from nanodoc.tensors.plain import without_values

_SMALL = 1 << 30  # bytes


@contextlib.contextmanager
def warnings_unsaid() -> Iterator[None]:
    """Warnings were said in the run itself, and are not said again; a filter that makes errors of
    them still does."""
    with warnings.catch_warnings(), listening((SHOW_WARNING, lambda original: _unsaid)):
        yield


def _unsaid(*args: object, **kwargs: object) -> None:
    pass


@contextlib.contextmanager
def state_preserved(
    runner: StepRunner, keeper: StateKeeper, *, moving: bool = False, on_host: bool = False
) -> Iterator[None]:
    """Model, optimizers, random states and gradients are afterwards as they are now. `moving`:
    optimizers will step. `on_host`: what is kept meanwhile goes to the host's memory, for the
    device has none left.

    Weights larger than 1 GiB are not copied where no train_step moves them: a forward pass that
    moves its own weights then leaves them moved, after the run.
    """
    recipe = runner.recipe
    named = list(recipe.model.named_parameters())
    now = keeper.take(0, [], apart=True)
    small = sum(p.numel() * p.element_size() for _, p in named if not without_values(p)) <= _SMALL
    known = {id(parameter) for _, parameter in keeper.named}
    grown = [(name, parameter) for name, parameter in named if id(parameter) not in known]
    of_grown: Collection[torch.Tensor | None] = [None] * len(grown)
    if runner.observing or moving or small:
        now.weights = copy_weights(keeper.named, host=on_host)
        of_grown = copy_weights(grown, host=on_host)
    modes = [(module, module.training) for module in recipe.model.modules()]
    if runner.observing or moving:
        now.optimizers = [
            copy_optimizer(optimizer, host=on_host) for optimizer in recipe.optimizers
        ]
    now.outside = KeptState(recipe)
    owned = [p for o in recipe.optimizers for group in o.param_groups for p in group["params"]]
    grads = [(p, p.grad) for p in {id(p): p for p in (*(p for _, p in named), *owned)}.values()]
    for parameter, grad in grads:
        if grad is not None and id(parameter) not in known:
            parameter.grad = grad.clone()  # no rewind clears it: what is run again adds to it
    try:
        yield
    finally:
        keeper.restore(now)
        for (_, parameter), saved in zip(grown, of_grown, strict=True):
            if saved is not None:
                parameter.data.copy_(saved)
        for module, training in modes:
            module.training = training
        for parameter, grad in grads:
            # a net that grew
            parameter.grad = grad if grad is None or grad.shape == parameter.shape else None
