"""The search for the loop that is a script's training: what each iteration that may be one began
with, and which of them runs when an optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import torch

from nanodoc.replay.closure_state import kept_state
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step_state import StateKeeper, StepState, copy_weights
from nanodoc.script.fingerprint import Fingerprint, scalars_of
from nanodoc.script.iteration import IterationStart, start_of
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.outside import Drawings, Outside
from nanodoc.script.recovered import RecoveredStep
from nanodoc.script.trained import Made, Trained, what_is_trained
from nanodoc.tensors.plain import local_of

_MOST_IDLE = 32  # iterations
_MOST_PARTS = 32  # micro-batches for one step
_STARTING = 3  # steps of optimizers: their first may warm them up, without gradients


@dataclass(slots=True)
class Candidate:
    """An iteration that may be the training's, as it began."""

    start: IterationStart
    capsule: StepState
    trained: Trained
    backwards: int
    """Backward passes that had been made by then."""
    indices: Sequence[int] | None
    losses: int = 0
    """Losses that had been seen by then."""
    waits: bool = False
    """The iteration before it has made a backward pass: it may begin with its optimizer's step."""
    steps_first: bool = False
    """It does."""
    fingerprints: list[Fingerprint] = field(default_factory=list)
    optimizer_steps: int = 0
    around: Candidate | None = None
    """The iteration of the loop around it."""
    before: Candidate | None = None
    """The iteration before it, whose gradients it may begin to step with."""

    @property
    def finite(self) -> bool:
        """Every loss and gradient that was seen of it."""
        return all(seen.finite for seen in self.fingerprints)

    @property
    def sick_before(self) -> Candidate | None:
        """The iteration before it, where the gradients that it is about to step with are that one's
        and not finite."""
        before, seen = self.before, self.fingerprints
        if before is None or not seen or self.finite or any(each.losses for each in seen):
            return None
        left = before.capsule.grads or ()  # by micro-batches before it
        clean = all(grad is None or bool(local_of(grad).isfinite().all()) for grad in left)
        return before if clean else None

    def outward(self) -> Candidate:
        """The iteration of the loop around it, as far as it has come; for `chosen` ones."""
        outer, (first, *later) = self.around, self.fingerprints
        assert outer is not None
        losses = [loss for seen in outer.fingerprints for loss in seen.losses]
        outer.fingerprints = [Fingerprint([*losses, *first.losses], first.gradients), *later]
        outer.optimizer_steps = self.optimizer_steps
        return outer


class Search:
    """Told of every mark, backward pass and optimizer until the loop is known."""

    def __init__(
        self,
        loops: Loops,
        outside: Outside,
        recovered: RecoveredStep,
        wanted: Callable[[Loop], bool] | None = None,
    ) -> None:
        """`wanted` says whether a loop may be the one, where that is known."""
        self._wanted = wanted
        self._loops = loops
        self._outside = outside
        self._recovered = recovered
        self._candidates: dict[int, Candidate] = {}
        self._keeper: StateKeeper | None = None
        self._trained: Trained | None = None
        self._backwards = 0
        self._in_vain = 0
        """Steps of optimizers before the first backward pass."""
        self._stepped = False
        """An optimizer has."""
        self._stepped_at = 0
        """Backward passes that had been made when one did."""
        self._moved = 0
        """Steps of optimizers in iterations without a backward pass until then."""
        self._unstepped: dict[int, int] = {}
        self._idle: dict[int, tuple[int, int]] = {}
        self.losses: list[torch.Tensor] = []
        """The losses since the candidate's iteration began, once there is one."""
        self.made = Made()

    def begin(
        self, frame: FrameType, loop: Loop, bound: Mapping[str, Any] | None = None
    ) -> Candidate | None:
        """Keeps what an iteration begins with. The iteration before it, where that moved weights
        without an optimizer, or was one of many that should have stepped: then this is the loop."""
        before = self._candidates.get(loop.number)
        if before is not None and (self._trains_by_hand(before) or self._never_steps(before)):
            return before
        if (self._wanted is not None and not self._wanted(loop)) or self._is_idle(loop):
            self.left(loop.number)
            return None
        start = start_of(frame, loop, self._outside, bound=bound)
        trained, keeper = self._what_is_trained({**start.namespace, **start.variables})
        self._recovered.begin(start)  # the capsule keeps its attributes, too
        capsule = keeper.take(0, [start.batch], apart=True)
        parameters = list(trained.recipe.model.parameters())
        if any(p.grad is not None for p in parameters):
            capsule.grads = [
                None if p.grad is None else p.grad.detach().clone() for p in parameters
            ]
        indices = self._outside.indices.of(start.own_batch)
        self._candidates[loop.number] = Candidate(
            start, capsule, trained, self._backwards, indices, len(self.losses)
        )
        waits = before is not None and self._backwards > before.backwards
        self._candidates[loop.number].waits = waits
        if before is not None and waits:
            self._candidates[loop.number].before, before.before = before, None
        self._outside.sinks = self._sinks()
        return None

    def _is_idle(self, loop: Loop) -> bool:
        """It has run for long without a backward pass: it loads or simulates, and need not pay for
        a search."""
        since, count = self._idle.get(loop.number, (self._backwards, 0))
        count = count + 1 if since == self._backwards else 0
        self._idle[loop.number] = (self._backwards, count)
        return count > _MOST_IDLE

    def idles(self, number: int) -> bool:
        """It may have gone on without a backward pass for too long to be watched."""
        since, count = self._idle.get(number, (self._backwards, 0))
        return since == self._backwards and count > _MOST_IDLE

    def left_for_its_loss(self, number: int) -> Candidate | None:
        """The iteration of a loop that makes backward passes, in which there was none, where no
        optimizer has stepped yet."""
        found = self._candidates.get(number)
        if found is None or self._stepped or not found.start.loop.backwards:
            return None
        loops = [candidate.start.loop for candidate in self._candidates.values()]
        if found.start.loop.whole and not all(loop.whole for loop in loops):
            return None  # a part of a loop's body is no loop
        trains = bool(found.trained.recipe.optimizers) and self._backwards == found.backwards
        return found if trains else None

    def left(self, number: int) -> None:
        """A loop is over, and no optimizer has stepped in it."""
        self._candidates.pop(number, None)
        self._outside.sinks = self._sinks()

    def before_backward(self, tensors: Any) -> None:
        """A backward pass begins."""
        self._backwards += 1
        self.losses += scalars_of(tensors)
        for candidate in self._candidates.values():
            recipe, capsule = candidate.trained.recipe, candidate.capsule
            if not recipe.optimizers and capsule.weights is None:
                # whatever moves them does so behind the backward pass
                capsule.weights = copy_weights(list(recipe.model.named_parameters()))

    def running(self, frame: FrameType | None, by_closure: bool) -> Candidate | None:
        """The innermost loop that runs and whose iteration has seen a backward pass, or is about to
        (`by_closure`), or which begins with the step of the one before it; the loop around it,
        where that makes backward passes of its own. Where no loop is to be seen, the step function
        that runs. A script may also have forgotten its backward passes."""
        self._stepped, waiting, inner = True, self._backwards > self._stepped_at, None
        self._stepped_at = self._backwards
        self._in_vain += not self._backwards
        forgotten = not self._backwards and self._in_vain > _STARTING
        found: Candidate | None = None
        whole: Candidate | None = None
        while frame is not None:
            for loop in self._loops.running_in(frame):
                candidate = self._candidates.get(loop.number)
                if candidate is None or candidate.start.code is not frame.f_code:
                    continue
                if self.made.optimizers() and not candidate.trained.recipe.optimizers:
                    continue  # its optimizer has only turned up now: from the next iteration on
                if loop.whole:
                    if self._backwards > candidate.backwards and (
                        whole is None or loop.backward_outside(whole.start.loop)
                    ):
                        whole = candidate
                elif found is None:
                    trains = self._backwards > candidate.backwards or (waiting and candidate.waits)
                    if by_closure or forgotten or trains:
                        found = inner = candidate
                elif loop.backward_outside(found.start.loop):
                    found = inner = candidate
                elif inner is not None:  # of the loop around it alone
                    inner.around, inner = candidate, None
            frame = frame.f_back
        found = found or whole
        if found is not None and not (by_closure or forgotten):
            found.steps_first = self._backwards == found.backwards
        return found

    def moving(self) -> None:
        """An optimizer is about to step in iterations of which none has seen a backward pass."""
        self._moved += 1
        if self._moved > _STARTING:
            return  # a loop of this kind would pay for copies at every iteration
        copies: dict[int, StepState] = {}
        for candidate in self._candidates.values():
            recipe, capsule = candidate.trained.recipe, candidate.capsule
            if not recipe.optimizers or capsule.optimizers:
                continue
            known = copies.setdefault(id(recipe), capsule)
            if known is capsule:
                capsule.weights = copy_weights(list(recipe.model.named_parameters()))
                capsule.optimizers = [copy_optimizer(optimizer) for optimizer in recipe.optimizers]
            else:
                capsule.weights, capsule.optimizers = known.weights, known.optimizers

    def failing(self, trace: TracebackType | None) -> Candidate | None:
        """The innermost loop that an error left, as its iteration began."""
        found: Candidate | None = None
        while trace is not None:
            running = self._loops.running_in(trace.tb_frame, trace.tb_lineno)
            for loop in [loop for loop in running if not loop.whole or found is None][:1]:
                found = self._candidates.get(loop.number, found)
            trace = trace.tb_next
        return found

    def left_by(self, loop: Loop | None, trace: TracebackType | None) -> tuple[bool, bool]:
        """(an error left the loop's body, its header)"""
        while trace is not None and loop is not None:
            frame, line = trace.tb_frame, trace.tb_lineno
            if loop in self._loops.running_in(frame, line):
                draws = loop.draws_in(trace)
                return not draws, draws
            if self._loops.headed_by(frame, line) is loop:
                return False, True
            trace = trace.tb_next
        return False, False

    def chosen(self, found: Candidate) -> None:
        """The loop is known; its weights have not moved since its iteration began, or `moving` has
        kept them."""
        capsule, outer = found.capsule, found.around
        if capsule.weights is None:
            capsule.weights = copy_weights(list(found.trained.recipe.model.named_parameters()))
        if not capsule.optimizers:
            optimizers = found.trained.recipe.optimizers
            capsule.optimizers = [copy_optimizer(optimizer) for optimizer in optimizers]
        if outer is not None and outer.trained is found.trained and not found.steps_first:
            outer.capsule.weights = outer.capsule.weights or capsule.weights
            outer.capsule.optimizers = outer.capsule.optimizers or capsule.optimizers
            # its own losses until then
            outer.fingerprints = [Fingerprint(self.losses[outer.losses : found.losses])]
            self._keep_outside(outer)
        else:
            found.around = None
        before = found.before
        if before is not None and found.steps_first and before.trained is found.trained:
            before.capsule.weights = before.capsule.weights or capsule.weights
            before.capsule.optimizers = before.capsule.optimizers or capsule.optimizers
            before.fingerprints = [Fingerprint(self.losses[before.losses : found.losses])]
        else:
            found.before = None
        self._keep_outside(found)
        self._candidates = {found.start.loop.number: found}
        self.losses = self.losses[found.losses :]
        self._outside.sinks = self._sinks()

    def _keep_outside(self, found: Candidate) -> None:
        """Target networks and averages of weights, which a step moves behind its optimizer."""
        self._recovered.begin(found.start)
        found.capsule.outside = kept_state(found.trained.recipe)

    def over(self) -> None:
        """The first step is over: its copies of weights and optimizers are not kept any longer."""
        self._candidates, self._keeper, self._trained, self.losses = {}, None, None, []

    def close(self) -> None:
        """Lets go of everything."""
        self.over()
        self._recovered = RecoveredStep(self._outside)

    def _sinks(self) -> list[Drawings]:
        return [candidate.start.recorded for candidate in self._candidates.values()]

    def _trains_by_hand(self, before: Candidate) -> bool:
        return (
            not before.trained.recipe.optimizers
            and self._backwards > before.backwards
            and before.trained.moved()
        )

    def _never_steps(self, before: Candidate) -> bool:
        """One of many iterations that clear gradients and make them, while no optimizer has ever
        stepped: there are more of them than micro-batches for one step."""
        forgets = (
            before.start.loop.clears
            and bool(before.trained.recipe.optimizers)
            and self._backwards > before.backwards
            and not self._stepped
        )
        number = before.start.loop.number
        self._unstepped[number] = self._unstepped.get(number, 0) + 1 if forgets else 0
        return self._unstepped[number] > _MOST_PARTS

    def _what_is_trained(self, names: dict[str, Any]) -> tuple[Trained, StateKeeper]:
        known, keeper = self._trained, self._keeper
        if known is not None and keeper is not None:
            made = self.made.optimizers()
            if made and known.recipe.optimizers == made:
                return known, keeper
        known = self._trained = what_is_trained(names, self.made, self._recovered)
        keeper = self._keeper = StateKeeper(known.recipe, known.device)
        keeper.more_scalers = known.more_scalers
        return known, keeper
