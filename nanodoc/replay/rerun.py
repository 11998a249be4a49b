"""Steps of the run's past, run again from a checkpoint with another learning rate, with clipping,
or as they were."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.looks.scheduler import OutOfTime
from nanodoc.measure.gradients import packed_vitals, really_nonfinite
from nanodoc.replay.optimizers import scaled_rates
from nanodoc.replay.past_step import PastStep
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepResult, StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState


@dataclass(frozen=True, slots=True)
class Rerun:
    """How a stretch of the run went. `norms` are gradient norms before clipping."""

    losses: list[float]
    norms: list[float]
    seconds: float
    complete: bool
    """Every step was run, and its loss, gradients and weights were finite."""
    reason: str = ""
    """Why it ended early: "not finite", "exception" or "time"."""
    again: float = math.nan
    """The loss of the first step's batch when the stretch was over: what it says of learning, no
    other batch's loss disturbs."""


class Rerunner:
    """Runs stretches of one recipe's past again, untraced; everything is put back afterwards."""

    def __init__(self, runner: StepRunner, keeper: StateKeeper) -> None:
        self._runner = runner
        self._keeper = keeper
        self._named = list(runner.recipe.model.named_parameters())
        self._used: dict[int, list[float | None]] = {}
        """The rates of the step that is run again, or of the last one before a step that broke."""

    def run(
        self,
        start: StepState,
        steps: Sequence[PastStep],
        deadline: float,
        *,
        rate: float = 1.0,
        highest: float | None = None,
        clip: float | None = None,
        options: dict[str, Any] | None = None,
    ) -> Rerun:
        """`steps` from the checkpoint `start`, every learning rate times `rate` and none above
        `highest`, gradients clipped to norm `clip`, optimizer options set to `options`. Ends where
        a loss, a gradient or a weight is not finite."""
        began = time.perf_counter()
        losses: list[float] = []
        norms: list[float] = []
        reason, again = "", math.nan
        with (
            state_preserved(self._runner, self._keeper, moving=True),
            warnings_unsaid(),
            self._clipping(clip),
        ):
            self._keeper.restore(start)
            self._used = {}
            for past in steps:
                if time.monotonic() > deadline:
                    reason = "time"
                    break
                self._set(past, options or {})
                try:
                    with self._at_rate(past, rate, highest), self._until(deadline):
                        loss, norm, bad = self._step(past)
                except OutOfTime:
                    reason = "time"
                    break
                except (UserCodeError, UsageError, RuntimeError):
                    reason = "exception"
                    break
                losses.append(loss)
                norms.append(norm)
                if bad or not math.isfinite(loss):
                    reason = "not finite"
                    break
            else:
                if not all(bool(torch.isfinite(p).all()) for _, p in self._named):
                    reason = "not finite"
                else:
                    try:
                        with self._until(deadline):
                            again = self._first_again(steps[0], rate, highest, options or {})
                    except OutOfTime:
                        reason = "time"
        return Rerun(losses, norms, time.perf_counter() - began, not reason, reason, again)

    @contextlib.contextmanager
    def _at_rate(self, past: PastStep, rate: float, highest: float | None = None) -> Iterator[None]:
        """Every learning rate times `rate`, and none above `highest`, at the moment an optimizer
        steps: many loops set their rates themselves, in each step. One that moves its weights by
        hand has no rate to change: they go that part of its way, which for a step along the
        gradient is the same."""
        # run again, a script's iteration sets the rate of the first one
        self._used = past.used or self._used
        if rate == 1 and highest is None and not self._used:
            yield
            return
        if self._runner.recipe.optimizers:
            with scaled_rates(rate, highest, self._used):
                yield
            return
        before = [p.detach().clone() for _, p in self._named]
        yield
        with torch.no_grad():
            for (_, parameter), old in zip(self._named, before, strict=True):
                parameter.data.copy_(old + rate * (parameter.data - old))

    def _first_again(
        self, past: PastStep, rate: float, highest: float | None, options: dict[str, Any]
    ) -> float:
        self._set(past, options)
        try:
            with self._at_rate(past, rate, highest):
                return self._step(past)[0]
        except (UserCodeError, UsageError, RuntimeError):
            return math.nan

    @contextlib.contextmanager
    def _until(self, deadline: float) -> Iterator[None]:
        """Steps are broken off then."""
        before, self._runner.until = self._runner.until, min(self._runner.until, deadline)
        try:
            yield
        finally:
            self._runner.until = before

    def _set(self, past: PastStep, options: dict[str, Any]) -> None:
        begin_past(self._runner, self._named, past, options)

    @contextlib.contextmanager
    def _clipping(self, limit: float | None) -> Iterator[None]:
        """Driven steps clip by the recipe; in a train_step the gradients are clipped before an
        optimizer uses them."""
        runner, recipe = self._runner, self._runner.recipe
        self._limit = limit
        if limit is not None and not runner.observing:
            runner.recipe = replace(recipe, clip_grad_norm=limit)
        try:
            yield
        finally:
            runner.recipe = recipe
            self._limit = None

    def _step(self, past: PastStep) -> tuple[float, float, bool]:
        """(loss, gradient norm, whether gradients or loss are not finite and no scaler skips the
        step)"""
        runner = self._runner
        norms: list[float] = []

        def on_gradients() -> None:
            norms.append(packed_vitals([], self._named).grad_norm)
            if self._limit is not None:
                torch.nn.utils.clip_grad_norm_([p for _, p in self._named], self._limit)

        if not runner.observing:
            return self._update(run_step(runner, past.batches))
        result = run_step(runner, past.batches, on_gradients=on_gradients)
        read = [float(loss) for loss in result.losses]
        loss = sum(read) / len(read) if read else math.nan
        norm = norms[-1] if norms else 0.0
        scaled = any(o is not None for o in (self._keeper.scaler, *self._keeper.more_scalers))
        bad = not scaled and not math.isfinite(norm) and bool(really_nonfinite(self._named))
        return loss, norm, bad

    def _update(self, result: StepResult) -> tuple[float, float, bool]:
        vitals = packed_vitals(result.losses, self._named)
        scaler = self._runner.recipe.scaler
        bad = not vitals.finite and scaler is None and bool(really_nonfinite(self._named))
        if bad or not math.isfinite(vitals.loss):
            return vitals.loss, vitals.grad_norm, True
        self._runner.update()
        return vitals.loss, vitals.grad_norm, False


def begin_past(
    runner: StepRunner,
    named: Sequence[tuple[str, torch.nn.Parameter]],
    past: PastStep,
    options: Mapping[str, Any],
) -> None:
    """Puts back what a step of the past began with, but for weights and optimizer states, which the
    steps before it have made; `options` of the optimizers are other ones than then."""
    recipe: Any = runner.recipe
    past.rng.restore(runner.device)
    if past.cleared:
        for _, parameter in named:
            parameter.grad = None
    if past.drawn is not None:
        recipe.train_step.recorded = past.drawn
    if past.numbers is not None:
        recipe.train_step.numbers = past.numbers
    for number, optimizer in enumerate(recipe.optimizers):
        rates, known_options = past.rates[number], past.options[number] if past.options else []
        for index, (group, known) in enumerate(zip(optimizer.param_groups, rates, strict=False)):
            group.update(known_options[index] if index < len(known_options) else {})
            group.update(options)
            if known is None:
                continue
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(known)
            else:
                group["lr"] = float(known)
