"""Watches a `train_step` that the user owns: backward calls and optimizer steps, never the loop
itself.

The last clean moment is just before an optimizer steps: the vitals are read there, and if they
trip, or if further optimizer steps are to be expected in the same train_step, the weights are
copied before the user's step goes on. Frames of this file are looked through when a user's line is
sought (see `trace.spans`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any

import torch

from nanodoc.heartbeat import trail
from nanodoc.instrument.frames import look_through
from nanodoc.measure.gradients import (
    Scratch,
    Vitals,
    packed_vitals,
    really_nonfinite,
    scalar_values,
)
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.closure_state import kept_state
from nanodoc.replay.optimizer_shares import Shares
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step_state import StepState, copy_weights
from nanodoc.replay.telling import are_installed, installed, open_observers
from nanodoc.trace.optimizer_steps import Closure, around_closure

look_through(__file__)


class LossObserver:
    """Sees no more of a train_step than its losses, from `open` to `close`; only where the calls
    are watched already (see `telling.installed`)."""

    before_step = None
    """Of `stepping` whoever opened it tells."""
    thread: int | None = None
    """As `Observer.thread`."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A step begins, of which nothing has been seen."""
        self.losses: list[float] = []
        """Those that were read."""
        self._unread: list[torch.Tensor] = []
        self._at_step = 0.0
        self.optimizer_steps = 0
        self.rates: dict[int, list[float | None]] = {}
        """As `Observer.rates`."""

    def open(self) -> LossObserver:
        self.thread = get_ident()
        open_observers.append(self)
        return self

    def close(self) -> None:
        open_observers.remove(self)

    def before_scaler_step(self) -> None:
        """Under a scaler every step is watched in full."""

    def before_backward(self, loss: torch.Tensor) -> None:
        """A loss is about to be differentiated. It is read when an optimizer steps, as by
        `Observer`: a script may write into it meanwhile."""
        if loss.numel() == 1:
            self._unread.append(loss.detach())

    @property
    def differentiated(self) -> bool:
        """A loss has been."""
        return bool(self.losses or self._unread)

    @property
    def late_steps(self) -> int:
        """As of `Observer`: a training whose steps begin with an optimizer's is not watched so."""
        return self.optimizer_steps

    def stepping(self, optimizer: torch.optim.Optimizer) -> bool:
        """An optimizer is about to step. False where one of the losses is not finite."""
        self.optimizer_steps += 1
        note_rates(optimizer, self.rates)
        losses = self.losses
        mean = self._mean() if self._unread or len(losses) != 1 else losses[0]
        if self.optimizer_steps == 1:
            self._at_step = mean
        return math.isfinite(mean)

    @property
    def loss(self) -> float:
        """As the vital signs of a step that is watched in full have it: the mean of the losses that
        its optimizer stepped with; of several optimizer steps the last loss."""
        if self.optimizer_steps == 1:
            return self._at_step
        mean = self._mean()
        return self.losses[-1] if self.optimizer_steps and self.losses else mean

    def _mean(self) -> float:
        losses = self.losses
        if self._unread:
            losses += scalar_values(self._unread)
            self._unread = []
        if len(losses) == 1:
            return losses[0]
        return sum(losses) / len(losses) if losses else 0.0


class Observer:
    """A context manager around one call of the user's train_step."""

    begins_with_scaler = False
    """A GradScaler has decided on the gradients of the step before."""
    begins_with_step = False
    """The step before has left gradients that no optimizer has stepped with."""
    begins_sick = False
    """Those were not finite. Only an optimizer that steps with them makes that a fault."""
    stepped_sick = False
    """One has."""

    def __init__(
        self, recipe: Recipe, named: list[tuple[str, torch.nn.Parameter]], expected_steps: int
    ) -> None:
        self._recipe = recipe
        self._named = named
        self._expected_steps = expected_steps
        self._capsule: StepState | None = None
        self._unread: list[torch.Tensor] = []
        self.thread: int | None = None
        """That which a script's step runs in: what another one does meanwhile is another training.
        None where it may run in several, as a recipe's own train_step."""
        self._calls: ExitStack | None = None
        self.scratch = Scratch()
        self.shares = Shares()
        self.on_loss: Callable[[torch.Tensor], None] | None = None
        self.on_output: Callable[[torch.Tensor], None] | None = None
        """What is differentiated is no loss: its gradient comes from elsewhere."""
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
        self.outputs = 0
        """How often something was differentiated that is no loss."""
        self.vitals: list[Vitals] = []
        self.optimizer_steps = 0
        self.early_steps = 0
        """Of them, those before any backward pass, with the gradients of the step before or with
        none."""
        self.on_sick_step: Callable[[], None] = lambda: None
        """One is about to."""
        self._before_last_step = 0
        """Backward passes before the last optimizer step."""
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
        if not are_installed():
            self._calls = ExitStack()
            self._calls.enter_context(installed())
        of_script = getattr(self._recipe.train_step, "of_script", False)
        self.thread = get_ident() if of_script else None
        open_observers.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        open_observers.remove(self)
        if self._calls is not None:
            self._calls.close()
        # in a cycle of references the step's batch would stay until Python collects its garbage
        self._capsule, self.extras = None, list

    def before_backward(self, loss: torch.Tensor) -> None:
        """A loss is about to be differentiated."""
        if not self.losses and self._capsule is not None:
            self.cleared_before_backward = not any(p.grad is not None for _, p in self._named)
        if loss.numel() == 1:
            self.losses.append(loss.detach())
            self._unread.append(loss.detach())
            if self.on_loss is not None:
                self.on_loss(loss)
            return
        self.outputs += 1
        if self.on_output is not None:
            self.on_output(loss)

    @property
    def differentiated(self) -> bool:
        """A loss has been."""
        return bool(self.losses)

    @property
    def leaves_gradients(self) -> bool:
        """No optimizer has stepped with those of the last backward pass."""
        return len(self.losses) > self._before_last_step

    @property
    def steps_first(self) -> bool:
        """The iteration begins with an optimizer's step that belongs to the one before it, and
        leaves one to the next."""
        return (self.early_steps > 0 or self.begins_with_scaler) and self.leaves_gradients

    @property
    def late_steps(self) -> int:
        """Optimizer steps with gradients of this step."""
        return self.optimizer_steps - self.early_steps

    def before_scaler_step(self) -> None:
        if self.thread not in (None, get_ident()):
            return
        if self._is_early(self._capsule):
            self.begins_with_scaler = True
            self._stepping_early(self._named)
        self._before_last_step = len(self.losses)
        if self.on_scaler_step is not None:
            self.on_scaler_step()

    def before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if self.thread not in (None, get_ident()):
            return None  # the gradients of this thread change while they would be looked at
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

    def _evaluated_again(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has moved the weights and asked for the loss once more."""
        self._before_last_step = len(self.losses)
        if self._capsule is None or self.tripped is not None:
            return
        named = self._of(optimizer)
        vitals = packed_vitals(self._unread, named, self.extras(), self.scratch)
        self._unread = []
        if not math.isfinite(vitals.loss) or (not vitals.finite and really_nonfinite(named)):
            self.tripped = vitals
            self.on_trip()

    def _stepping_early(self, named: Sequence[tuple[str, torch.nn.Parameter]]) -> None:
        """An optimizer is about to step with gradients of the step before."""
        if self.begins_sick and not self.stepped_sick and really_nonfinite(named):
            self.stepped_sick = True
            self.on_sick_step()

    def _of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]]:
        return self.shares.of(optimizer, self._named)

    def _gradients_complete(
        self, optimizer: torch.optim.Optimizer, *, by_closure: bool = False
    ) -> None:
        """The last clean moment before the optimizer moves the weights."""
        trail.current.phase("optimizer")
        capsule = self._capsule  # which another thread may take away: the step may be over by then
        early = not by_closure and self._is_early(capsule)
        first = self.late_steps == 0
        self.optimizer_steps += 1
        self.early_steps += early
        if self.on_gradients is not None:
            self.on_gradients()
        self._before_last_step = len(self.losses)
        if capsule is None:
            return
        note_rates(optimizer, self.rates)
        if early:
            if capsule.weights is None and capsule.grads is not None:
                self._keep_weights(capsule)
            self._stepping_early(self._of(optimizer))
            return
        named = self._of(optimizer)
        vitals = packed_vitals(self._unread, named, self.extras(), self.scratch)
        whole = len(named) == len(self._named) and len(vitals.names) > 0
        with_gradient = vitals.names if whole else [n for n, p in self._named if p.grad is not None]
        self.with_gradient.update(dict.fromkeys(with_gradient))
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
            and capsule.weights is None
            and (
                self._expected_steps > 1
                or (by_closure and self.expected_evaluations > 1)
                or self.tripped is not None
            )
        ):
            self._keep_weights(capsule)
            # what the step does after this, to a teacher or a second optimizer, is not clean
            if self.tripped is not None:
                capsule.outside = kept_state(self._recipe)
        if self.tripped is not None:
            self.on_trip()

    def _is_early(self, capsule: StepState | None) -> bool:
        """Nothing of the step has made gradients: those that there are were looked at when the step
        before was over."""
        if self.losses or self.outputs or self.vitals:
            return False
        return (
            capsule is None  # a step that is run again
            or self.begins_with_step
            or all(parameter.grad is None for _, parameter in self._named)
        )

    def _keep_weights(self, capsule: StepState) -> None:
        capsule.weights = copy_weights(self._named)
        capsule.optimizers = [copy_optimizer(each) for each in self._recipe.optimizers]


def note_rates(optimizer: torch.optim.Optimizer, known: dict[int, list[float | None]]) -> None:
    """Adds the rates that the optimizer steps with to `known`, as in `Observer.rates`."""
    now: list[float | None] = []
    for group in optimizer.param_groups:  # no comprehension: on Python 3.11 each is a call
        rate = group.get("lr")
        now.append(float(rate) if isinstance(rate, (int, float)) else None)
    if known.setdefault(id(optimizer), now) != now:
        known[id(optimizer)] = [None] * len(now)


def _found_inf(optimizer: torch.optim.Optimizer) -> bool:
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found)
