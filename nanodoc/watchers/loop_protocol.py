"""The order in which a train_step clears, differentiates, clips and steps. Only relations between
calls are judged, on identities and version counters. A value is read only where these leave a doubt
(gradients cleared through `.data`, or by zero_grad before the step), never in a loop that is in
order. Told of its calls by `train_step_calls`, which wraps them."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from nanodoc.facts.loop import (
    CARRIED,
    CLIPPED_EARLY,
    CLIPPED_LATE,
    CLIPPED_NOTHING,
    DISCARDED,
    DROPPED,
    EARLY,
    FRESH_OPTIMIZER,
    IN_VAIN,
    NEVER_DIFFERENTIATED,
    NEVER_STEPPED,
    SUMMED,
    LoopMisuse,
)
from nanodoc.tensors.plain import local_of
from nanodoc.trace.spans import Place, left_loop, resolved
from nanodoc.watchers.loop_records import Count, Schedule
from nanodoc.watchers.noted_gradient import NotedGradient, have_moved, is_zero, lost, writes

_PARTS = 8  # backward passes for one step
_Known = Iterable[tuple[torch.Tensor, NotedGradient]]

_WATCHED = 24
"""Train_steps that are watched at least: what a loop does wrong it does from the start."""
_STEPPING = 6
"""Of these, those in which an optimizer stepped: a loop that accumulates over many batches is
watched for longer,"""
_CONFIRMED = 3  # times that gradients which look uncleared are looked at
_LONGEST = 256  # but not for ever
_MOST_NAMED = 64
_STARTING = 2  # train_steps, in which what is never done may be yet to come
_MOST_GATHERED = 256
"""Batches whose gradients a training may sum before an optimizer steps."""


class LoopProtocol:
    """One run's train_steps. `misuses()` when it has ended."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        named = list(named)
        self._names = {id(p): name for name, p in named}
        self._known: dict[int, NotedGradient] = {}
        self._parameters: dict[int, torch.Tensor] = {id(p): p for _, p in named}
        """The model's, and those of other optimizers that stay from step to step. By strong
        references: torch refuses to swap tensors that weak ones point to."""
        self._met: dict[int, tuple[weakref.ref[Any], int]] = {}
        """Optimizers and the step they were first seen in."""
        self._counts: dict[str, Count] = {}
        self._watched = 0
        self._stepping = 0
        self._backwards: list[tuple[Place | None, bool]] = []
        self._stepped = 0
        self._never_differentiated = True
        self._any_backward: Place | None = None
        self._any_divided = False
        self._stateless: set[int] = set()
        """Optimizers (by identity) that had no state when they began to step."""
        self._evaluated = False
        """The optimizer that steps now has called its closure."""
        self._confirmed = 0
        self._clipped = self._rewritten = False
        """Gradients were clipped in this run; somebody else has written to them after their
        backward."""
        self._cleared_between = False
        self._clipped_early: Place | None = None
        """A clip of this step that found no gradient."""
        self._stepped_at: Place | None = None
        self._cleared_at: Place | None = None
        self.ever_stepped = 0
        self.last_stepped: dict[int, int] = {}
        """The step in which each optimizer (by identity) stepped last."""
        self._schedules: dict[int, Schedule] = {}
        self.eval_at: dict[int, tuple[Place | None, int]] = {}
        """Where modules (by identity) were last put into eval mode, and in which step."""
        self.clip_norms: list[tuple[torch.Tensor, int]] = []  # before each clipping, versions
        self.writes = False
        """It has opened a file for writing."""
        self.step = 0
        self.active = False

    def begin(self, step: int) -> None:
        """A train_step is about to be called."""
        self.step = step
        self.active = self._watched < _WATCHED or (
            self._stepping < _STEPPING and self._watched < _LONGEST
        )
        self._watched += self.active
        if not self.active and self._known:
            self.forget()
        self._backwards, self._stepped, self._cleared_between, self._rewritten = [], 0, False, False
        self._clipped_early = None

    def end(self) -> None:
        """It has returned."""
        if not self.active:
            return
        self._stepping += self._stepped > 0
        places = {place for place, _ in self._backwards}
        if self._cleared_between or self._rewritten:
            return
        if (
            self._stepped == 1
            and len(self._backwards) > 1
            and len(places) == 1
            and not any(divided for _, divided in self._backwards)
        ):
            count = self._count(SUMMED, self._backwards[0][0], None)
            count.times = len(self._backwards)

    def _has_stayed(self, optimizer: torch.optim.Optimizer) -> bool:
        """It stepped in an earlier train_step too. An inner loop makes its own, whose tensors are
        not to be held."""
        known = self._met.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            with contextlib.suppress(TypeError):  # a class with slots
                self._met[id(optimizer)] = (weakref.ref(optimizer), self.step)
            return False
        return known[1] < self.step

    def forget(self) -> None:
        """The run is over, or enough of it was seen: nothing is held any more."""
        self._known, self._met, self._parameters = {}, {}, {}

    # -- the calls ---------------------------------------------------------------------------------

    def before_backward(self) -> None:
        if not self.active:
            return
        self._forget_zeros()
        for identity, parameter in self._parameters.items():
            known = self._known.get(identity)
            if known is None:
                continue
            grad = parameter.grad
            if not known.same(grad):  # cleared, replaced or rewritten
                known.stepped = known.carried = False
                if grad is None:
                    known.fresh = False
            elif known.stepped:
                known.carried = True

    def _forget_zeros(self) -> None:
        """Gradients that look as they were after a step may have been cleared through `.data`,
        which counts no versions. Read, but only where they look so, and until that has been the
        case a few times."""
        if self._confirmed >= _CONFIRMED:
            return
        left = [
            (update, grad)
            for identity, parameter in self._parameters.items()
            if (update := self._known.get(identity)) is not None
            and update.stepped
            and (grad := parameter.grad) is not None
            and update.same(grad)
            and grad.layout is torch.strided
        ]
        if not left:
            return
        zero = [not bool(local_of(grad).any()) for _, grad in left]
        self._confirmed += not all(zero)
        for (update, _), cleared in zip(left, zero, strict=True):
            if cleared:
                update.stepped = False

    def after_backward(self, place: Place | None, *, divided: bool) -> None:
        """`divided`: the loss was a part of a sum or of a mean."""
        if not self.active:
            return
        if self._clipped_early is not None:
            self._count(CLIPPED_EARLY, self._clipped_early, place)
            self._clipped_early = None
        self._never_differentiated = False
        self._any_backward = self._any_backward or place
        self._any_divided |= divided
        self._backwards.append((place, divided))
        for identity, parameter in self._parameters.items():
            known = self._known.get(identity)
            if known is None:
                known = self._known[identity] = NotedGradient()
            grad = parameter.grad
            if grad is None:
                continue
            if known.stepped and known.same(grad):  # this backward did not reach it
                known.carried = False
                continue
            if not known.same(grad):
                known.fresh, known.cleared = True, False
                known.place, known.made_at, known.divided = place, self.ever_stepped, divided
                known.weights = parameter._version
                known.note(grad)
                if not self.ever_stepped and len(self._known) <= _MOST_NAMED:
                    known.note_value(parameter)

    def attempted(self) -> None:  # a GradScaler is asked to step; it may skip
        self.ever_stepped += 1

    def cleared(self, parameters: Iterable[torch.Tensor], place: Place | None) -> None:
        """zero_grad() has gone over these."""
        if self.active:
            self._cleared_between |= bool(self._backwards)
            self._cleared_at = place
            for parameter in parameters:
                known = self._known.get(id(parameter))
                if known is None:
                    continue
                unused = known.fresh and known.made_at == self.ever_stepped
                # whoever moves the weights meanwhile has used it (sharpness-aware minimisation)
                if unused and not known.cleared and parameter._version == known.weights:
                    known.dropped, known.dropped_from = known.dropped + 1, known.place
                known.cleared = True

    def scheduled(self, scheduler: Any, place: Place | None) -> None:
        """A schedule is about to step."""
        if getattr(scheduler, "_step_count", 0) == 0:  # its constructor
            return
        known = self._schedules.get(id(scheduler))
        if known is None:
            known = self._schedules[id(scheduler)] = Schedule(
                scheduler, place, first=self.ever_stepped == 0
            )
        known.steps += 1

    def mode_set(self, module: torch.nn.Module, mode: bool, place: Place | None) -> None:
        """`train()` or `eval()` is called."""
        if not mode:
            self.eval_at[id(module)] = (place, self.step)
        else:
            self.eval_at.pop(id(module), None)

    def before_step(self, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        self.ever_stepped += 1
        self.last_stepped[id(optimizer)] = self.step
        if not self.active:
            return
        own = [p for group in optimizer.param_groups for p in group["params"]]
        if self._has_stayed(optimizer):
            self._parameters = {id(parameter): parameter for parameter in own} | self._parameters
        self._stepped, self._stepped_at = self._stepped + 1, place
        if self._backwards and all(p.grad is None for p in own):
            names = dict.fromkeys(self._names.get(id(p), "") for p in own)
            if self._counts.get(IN_VAIN) is None or self._counts[IN_VAIN].parameters == names:
                self._count(IN_VAIN, place, self._backwards[-1][0]).parameters = names
        known = [(p, self._known[id(p)]) for p in own if id(p) in self._known]
        self._note_carried(known, place)
        gone, whole = lost(known, self.ever_stepped - 1)
        if gone:
            made = gone[0][1].place  # by a backward that comes after the step in each iteration?
            early = all(made != backward for backward, _ in self._backwards)
            kind, at = (EARLY, place) if early else (DISCARDED, self._cleared_at or place)
            count = self._count(kind, at, made)
            if not whole:
                count.parameters |= dict.fromkeys(self._names.get(id(p), "") for p, _ in gone)
        self._note_dropped(known, place)
        self._rewritten |= (
            any(
                p.grad is not None and update.fresh and not update.same(p.grad)
                for p, update in known
            )
            and not self._clipped
        )
        # by optimizer: one that wraps another steps it inside of its own step
        self._stateless.discard(id(optimizer))
        if not optimizer.state and any(id(p) in self._names for p in own):
            self._stateless.add(id(optimizer))

    def _note_carried(self, known: _Known, place: Place | None) -> None:
        """Gradients that are about to be used and still hold those that were used before."""
        carried = [
            p
            for p, update in known
            if update.carried
            and not update.cleared
            and p.grad is not None
            and update.grad is not None
            and update.grad() is p.grad
        ]
        if carried:
            count = self._count(CARRIED, place, self._backwards[-1][0] if self._backwards else None)
            for parameter in carried[:_MOST_NAMED]:
                count.parameters[self._names.get(id(parameter), "")] = None

    def _note_dropped(self, known: _Known, place: Place | None) -> None:
        """Gradients that are used now, and stand for the last of several backward passes of one
        line: of three and more, or of parts of one loss. By hand the others may have been kept."""
        used = [
            update
            for p, update in known
            if update.fresh and not update.cleared and update.only_clipped(p.grad)
        ]
        dropped = [
            u for u in used if u.dropped > (not u.divided) and u.dropped_from == u.place is not None
        ]
        if dropped and len(dropped) == len(used):
            times, at = 1 + max(update.dropped for update in dropped), dropped[0].place
            # so many are no parts of one batch: the step was to come after each
            late = times > _PARTS and not any(u.divided for u in dropped) and left_loop(place, at)
            count = self._count(DROPPED, place if late else self._cleared_at, at)
            count.times = max(count.times, times)
        for _, update in known:
            update.dropped = 0

    def evaluating(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer is about to call its closure: it has used the gradients of the call before,
        if there was one in this step."""
        if not self.active:
            return
        if self._evaluated:
            self._used(optimizer)
        self._evaluated, self._backwards = True, []

    def _used(self, optimizer: torch.optim.Optimizer) -> None:
        own = [p for group in optimizer.param_groups for p in group["params"]]
        known = [(p, self._known[id(p)]) for p in own if id(p) in self._known]
        self._note_carried(known, self._stepped_at)
        for parameter, update in known:
            if parameter.grad is not None:
                update.note(parameter.grad)
                update.stepped, update.carried, update.fresh = True, False, False

    def after_step(self, optimizer: torch.optim.Optimizer, place: Place | None) -> None:
        if not self.active:
            return
        if self._evaluated:
            self._used(optimizer)
        self._evaluated = False
        if id(optimizer) in self._stateless and optimizer.state and self.step:
            self._count(FRESH_OPTIMIZER, place, None)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                known = self._known.get(id(parameter))
                if known is not None and parameter.grad is not None:
                    known.note(parameter.grad)
                    known.stepped, known.carried, known.fresh = True, False, False

    def clipped(self, grads: Iterable[torch.Tensor], limit: float, place: Place | None) -> None:
        """Gradients are about to be clipped to `limit`; with none their norm is only measured."""
        if not self.active or limit == math.inf:
            return
        self._clipped = True
        grads = list(grads)
        if not self._backwards and all(map(is_zero, grads)):
            self._clipped_early = place
        clipped = {id(grad) for grad in grads}
        touched = [
            (p.grad, self._known[i])
            for i, p in self._parameters.items()
            if i in self._known and id(p.grad) in clipped
        ]
        for grad, update in touched:
            assert grad is not None  # only gradients are clipped
            update.clipped_to = writes(grad) + 1
        used = (update.stepped and not update.fresh and update.same(g) for g, update in touched)
        by_hand = not self.ever_stepped and have_moved([update for _, update in touched])
        if touched and (all(used) or by_hand):
            self._count(CLIPPED_LATE, place, self._stepped_at)

    def clipped_nothing(self, place: Place | None) -> None:  # no parameters at all
        if self.active:
            self._count(CLIPPED_NOTHING, place, None)

    def _count(self, kind: str, place: Place | None, other: Place | None) -> Count:
        count = self._counts.setdefault(kind, Count(place, other, self.step))
        count.add(self.step)
        return count

    # -- what is known at the end ------------------------------------------------------------------

    @property
    def schedules(self) -> list[Schedule]:
        return list(self._schedules.values())

    def misuses(self) -> tuple[LoopMisuse, ...]:
        found = [count.misuse(kind, self._stepping) for kind, count in self._counts.items()]
        if self._watched <= _STARTING:
            return tuple(found)
        if self._never_differentiated:
            found.append(self._never(NEVER_DIFFERENTIATED, self._stepped_at))
        elif not self.ever_stepped and self._any_backward is not None and not self._may_gather:
            found.append(self._never(NEVER_STEPPED, self._any_backward))
        return tuple(found)

    @property
    def _may_gather(self) -> bool:
        """Its losses are parts of a mean, and the run may be too short for the first step."""
        return self._any_divided and max(self._watched, self.step) <= _MOST_GATHERED

    def _never(self, kind: str, place: Place | None) -> LoopMisuse:
        return LoopMisuse(
            kind=kind,
            steps=self._watched,
            watched=self._watched,
            first_step=0,
            location=resolved(place),
        )
