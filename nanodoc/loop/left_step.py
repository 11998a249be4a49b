"""A sick step that may be left out: a script looks at its loss itself before it would differentiate
it; or an iteration that begins with the optimizer's step looks at the gradients before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nanodoc.loop.step_reading import StepReading
from nanodoc.measure.gradients import Vitals
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.closure_state import kept_state
from nanodoc.replay.lockstep import local_bytes
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step_state import StepState, copy_weights
from nanodoc.tensors.host_memory import free_host_memory

_SHARE = 0.25  # of the free host memory
MOST_LEFT_OUT = 5
"""A script may leave out a bad batch; of more than this many in a row no training comes."""


@dataclass(slots=True)
class LeftStep:
    """The first of those since the last step that trained. Whether the training goes on or ends
    with it shows later."""

    start: StepState
    """With buffers of its own, and with weights and optimizers in host memory, where there is
    room."""
    loss: float
    indices: Sequence[int] | None
    versions: tuple[int, ...] = ()
    """How often each parameter had been written to."""
    times: int = 1
    """It, and those behind it that were left in the same way."""
    gone: bool = False
    """The last of them left the loop, too."""
    told: StepReading | None = None
    """Of one whose loss was differentiated, in a loop that begins with the optimizer's step."""
    skipped: int = 0
    """How many steps had been left out before it."""

    @property
    def ends(self) -> bool:
        """The training ends with it, or comes to nothing any more."""
        return self.gone or self.times > MOST_LEFT_OUT

    @property
    def reading(self) -> StepReading:
        """As that of a step whose loss was differentiated."""
        if self.told is not None:
            return self.told
        vitals = Vitals(loss=self.loss, grad_norm=math.nan, norms=(), names=(), extras=())
        return StepReading(vitals, tripped=vitals)


Named = Sequence[tuple[str, torch.nn.Parameter]]


def left_step(
    start: StepState, recipe: Recipe, named: Named, loss: float, indices: Sequence[int] | None
) -> LeftStep:
    """The training may go on: what it needs of a device's memory is not taken from it. `named` are
    the model's parameters: in the middle of a step FSDP2 has put others in their places."""
    buffers = [
        (module, name, buffer, saved if saved is None else saved.clone())
        for module, name, buffer, saved in start.buffers
    ]
    start = replace(start, buffers=buffers)
    free = free_host_memory()
    if start.outside is None:
        start.outside = kept_state(recipe)
    if start.weights is None and (free is None or local_bytes(recipe) <= _SHARE * free):
        start.weights = copy_weights(named, host=True)
        start.optimizers = [copy_optimizer(optimizer, host=True) for optimizer in recipe.optimizers]
    return LeftStep(start, loss, indices, versions_of(named))


def versions_of(named: Named) -> tuple[int, ...]:
    """How often each parameter was written to."""
    return tuple(parameter._version for _, parameter in named)
