"""Watches a `train_step` that the user owns: backward calls and optimizer steps, never the loop
itself.

The last clean moment is just before an optimizer steps: the vitals are read there, and if they
trip, or if further optimizer steps are to be expected in the same train_step, the weights are
copied before the user's step goes on. Frames of this file are looked through when a user's line is
sought (see `trace.spans`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.heartbeat.trail import here
from nanodoc.measure.gradients import Scratch, Vitals, packed_vitals, really_nonfinite
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.closure_state import kept_state
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step_state import StepState, copy_weights
from nanodoc.trace.optimizer_steps import Closure, around_closure


class Observer:
    """A context manager around one call of the user's train_step."""

    def __init__(
        self, recipe: Recipe, named: list[tuple[str, torch.nn.Parameter]], expected_steps: int
    ) -> None:
        self._recipe = recipe
        self._named = named
        self._expected_steps = expected_steps
        self._capsule: StepState | None = None
        self._unread: list[torch.Tensor] = []
        self._original_backward: Callable[..., Any] | None = None
        self._original_scaler_step: Callable[..., Any] | None = None
        self._hook: Any = None
        self._inside = False
        self.scratch = Scratch()
        self.on_loss: Callable[[torch.Tensor], None] | None = None
        self.on_gradients: Callable[[], None] | None = None
        self.on_scaler_step: Callable[[], None] | None = None
        """Where a GradScaler is about to step: the optimizer's own hook is silent where it skips
        the step."""
        self.on_fused_skip: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
        """A fused optimizer is called by the GradScaler although the step will be skipped."""
        self.on_trip: Callable[[], None] = lambda: None
        """The vital signs are not healthy, and the optimizer has not stepped."""
        self.extras: Callable[[], list[torch.Tensor]] = list
        """Further scalars to read together with the vitals."""
        self.losses: list[torch.Tensor] = []
        self.vitals: list[Vitals] = []
        self.optimizer_steps = 0
        self.evaluations = 0
        """How often an optimizer called the closure it was given."""
        self.expected_evaluations = 2
        """As often as in the step before; weights are moved between them."""
        self.tripped: Vitals | None = None
        self.cleared_before_backward = True
        self.with_gradient: dict[str, None] = {}
        """Names of the parameters that had a gradient when an optimizer stepped."""
        self.rates: dict[int, list[float | None]] = {}
        """The learning rates of the groups of each optimizer (by identity) that it stepped with;
        Nones where it stepped with several, or with one that lies in a tensor."""

    def watch(self, capsule: StepState | None) -> Observer:
        """Sets the capsule that clean weights are put into; without one, nothing is read (a
        replay)."""
        self._capsule = capsule
        return self

    def __enter__(self) -> Observer:
        original = self._original_backward = torch.Tensor.backward
        observer = self

        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if observer._inside:  # under a function mode torch calls it a second time
                return original(tensor, *args, **kwargs)
            observer._before_backward(tensor)
            observer._inside = True
            here().phase("backward")
            try:
                return original(tensor, *args, **kwargs)
            finally:
                observer._inside = False
                here().phase("forward")

        def scaler_step(
            scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
        ) -> Any:
            if observer.on_scaler_step is not None:
                observer.on_scaler_step()
            return original_step(scaler, optimizer, *args, **kwargs)

        original_step = self._original_scaler_step = GradScaler.step
        GradScaler.step = scaler_step  # type: ignore[method-assign, assignment]  # put back in __exit__
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]  # put back in __exit__
        return self

    def __exit__(self, *exc: Any) -> None:
        torch.Tensor.backward = self._original_backward  # type: ignore[assignment, method-assign]  # the original
        GradScaler.step = self._original_scaler_step  # type: ignore[method-assign, assignment]  # the original
        self._hook.remove()

    def _before_backward(self, loss: torch.Tensor) -> None:
        if not self.losses and self._capsule is not None:
            self.cleared_before_backward = all(p.grad is None for _, p in self._named)
        if loss.numel() == 1:
            self.losses.append(loss.detach())
            self._unread.append(loss.detach())
            if self.on_loss is not None:
                self.on_loss(loss)

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        evaluations = 0

        def evaluated(closure: Closure) -> Any:
            nonlocal evaluations
            loss = closure()
            evaluations += 1
            self.evaluations = max(self.evaluations, evaluations)
            if evaluations == 1:
                self._gradients_complete(optimizer, by_closure=True)
            else:
                self._evaluated_again(optimizer)
            return loss

        changed = around_closure(args, kwargs, evaluated)
        if changed is None:
            self._gradients_complete(optimizer)
        return changed

    def _note_rates(self, optimizer: torch.optim.Optimizer) -> None:
        rates = [group.get("lr") for group in optimizer.param_groups]
        known = [float(rate) if isinstance(rate, (int, float)) else None for rate in rates]
        if self.rates.setdefault(id(optimizer), known) != known:
            self.rates[id(optimizer)] = [None] * len(known)

    def _evaluated_again(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has moved the weights and asked for the loss once more."""
        if self._capsule is None or self.tripped is not None:
            return
        named = self._of(optimizer)
        vitals = packed_vitals(self._unread, named, self.extras(), self.scratch)
        self._unread = []
        if not math.isfinite(vitals.loss) or (not vitals.finite and really_nonfinite(named)):
            self.tripped = vitals
            self.on_trip()

    def _of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]]:
        own = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [(name, p) for name, p in self._named if id(p) in own]

    def _gradients_complete(
        self, optimizer: torch.optim.Optimizer, *, by_closure: bool = False
    ) -> None:
        """The last clean moment before the optimizer moves the weights."""
        here().phase("optimizer")
        first = self.optimizer_steps == 0
        self.optimizer_steps += 1
        if self.on_gradients is not None:
            self.on_gradients()
        if self._capsule is None:
            return
        self._note_rates(optimizer)
        self.with_gradient.update(
            (name, None) for name, parameter in self._named if parameter.grad is not None
        )
        named = self._of(optimizer)
        vitals = packed_vitals(self._unread, named, self.extras(), self.scratch)
        self._unread = []
        # only of a fused optimizer, which unscales and skips by itself
        scale = getattr(optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor) and vitals.extras:
            vitals = vitals.unscaled(vitals.extras[0])
        if not vitals.finite and math.isfinite(vitals.loss) and _found_inf(optimizer):
            self.optimizer_steps -= 1
            self.on_fused_skip(optimizer)
            return
        self.vitals.append(vitals)
        if (
            self.tripped is None
            and not vitals.finite
            and (not math.isfinite(vitals.loss) or really_nonfinite(named))
        ):
            self.tripped = vitals
        if (
            first
            and self._capsule.weights is None
            and (
                self._expected_steps > 1
                or (by_closure and self.expected_evaluations > 1)
                or self.tripped is not None
            )
        ):
            self._capsule.weights = copy_weights(self._named)
            self._capsule.optimizers = [
                copy_optimizer(optimizer) for optimizer in self._recipe.optimizers
            ]
            # what the step does after this, to a teacher or a second optimizer, is not clean
            if self.tripped is not None:
                self._capsule.outside = kept_state(self._recipe)
        if self.tripped is not None:
            self.on_trip()


def _found_inf(optimizer: torch.optim.Optimizer) -> bool:
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found)
