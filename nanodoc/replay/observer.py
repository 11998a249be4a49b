"""Watches a `train_step` that the user owns: backward calls and optimizer steps, never the loop
itself.

The last clean moment is just before an optimizer steps: the vitals are read there, and if they
trip, or if further optimizer steps are to be expected in the same train_step, the weights are
copied before the user's step goes on. Frames of this file are looked through when a user's line is
sought (see `trace.spans`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.heartbeat import trail
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
from nanodoc.trace.optimizer_steps import Closure, around_closure

_open: list[Observer | LossObserver] = []
"""Those that observe now, the innermost last."""
_installs = 0


@contextmanager
def installed() -> Iterator[None]:
    """`backward` and a GradScaler's `step` tell the observer that is open. Around a whole run it
    saves putting the wrappers in place for each step: every change of a class costs Python its
    caches."""
    global _installs
    if _installs:
        yield
        return
    telling = _Telling()
    told = [
        (owner, name, original := getattr(owner, name), make(original))
        for owner, name, make in (
            (torch.autograd, "backward", telling.backward),  # which a tensor's own calls, too
            (GradScaler, "step", _telling_step),
        )
    ]
    # for the whole run, too: another thread of the training's may step while a hook would be added
    hook = register_optimizer_step_pre_hook(_before_any_step)
    _installs += 1
    for owner, name, _, replacement in told:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        _installs -= 1
        hook.remove()
        for owner, name, original, replacement in told:
            # somebody else may have wrapped it since
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)


def _before_any_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    before = _open[-1].before_step if _open else None
    return before(optimizer, args, kwargs) if before is not None else None


def unused_loss(loss: torch.Tensor) -> None:
    """A loss that the step leaves without having differentiated it."""
    if _open and not _open[-1].optimizer_steps:
        _open[-1].before_backward(loss)


class _Telling:
    """Wrappers of which the outermost tells: torch's own call each other, and under a function mode
    one calls itself."""

    def __init__(self) -> None:
        self._inside = False

    def backward(self, original: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # another thread of the training's differentiates something of its own
            if not _open or _open[-1].thread not in (None, get_ident()) or self._inside:
                return original(tensors, *args, **kwargs)
            if isinstance(tensors, torch.Tensor):
                _open[-1].before_backward(tensors)
            elif isinstance(tensors, (list, tuple)):
                for tensor in tensors:
                    if isinstance(tensor, torch.Tensor):
                        _open[-1].before_backward(tensor)
            self._inside, crumbs = True, trail.current
            crumbs.phase("backward")
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self._inside = False
                crumbs.phase("forward")

        return backward


def _telling_step(original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if _open and (told := _open[-1].on_scaler_step) is not None:
            told()
        return original(scaler, optimizer, *args, **kwargs)

    return step


class LossObserver:
    """Sees no more of a train_step than its losses, from `open` to `close`; only where the calls
    are watched already (see `installed`)."""

    on_scaler_step = None
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
        _open.append(self)
        return self

    def close(self) -> None:
        _open.remove(self)

    def before_backward(self, loss: torch.Tensor) -> None:
        """A loss is about to be differentiated. It is read when an optimizer steps, as by
        `Observer`: a script may write into it meanwhile."""
        if loss.numel() == 1:
            self._unread.append(loss.detach())

    @property
    def differentiated(self) -> bool:
        """A loss has been."""
        return bool(self.losses or self._unread)

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
        if not _installs:
            self._calls = ExitStack()
            self._calls.enter_context(installed())
        of_script = getattr(self._recipe.train_step, "of_script", False)
        self.thread = get_ident() if of_script else None
        _open.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _open.remove(self)
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
        if self._capsule is None or self.tripped is not None:
            return
        named = self._of(optimizer)
        vitals = packed_vitals(self._unread, named, self.extras(), self.scratch)
        self._unread = []
        if not math.isfinite(vitals.loss) or (not vitals.finite and really_nonfinite(named)):
            self.tripped = vitals
            self.on_trip()

    def _of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.nn.Parameter]]:
        return self.shares.of(optimizer, self._named)

    def _gradients_complete(
        self, optimizer: torch.optim.Optimizer, *, by_closure: bool = False
    ) -> None:
        """The last clean moment before the optimizer moves the weights."""
        trail.current.phase("optimizer")
        first = self.optimizer_steps == 0
        self.optimizer_steps += 1
        if self.on_gradients is not None:
            self.on_gradients()
        capsule = self._capsule  # which another thread may take away: the step may be over by then
        if capsule is None:
            return
        note_rates(optimizer, self.rates)
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
            capsule.weights = copy_weights(self._named)
            capsule.optimizers = [
                copy_optimizer(optimizer) for optimizer in self._recipe.optimizers
            ]
            # what the step does after this, to a teacher or a second optimizer, is not clean
            if self.tripped is not None:
                capsule.outside = kept_state(self._recipe)
        if self.tripped is not None:
            self.on_trip()


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
