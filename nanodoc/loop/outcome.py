"""The course of a run, step by step, and what is left of it as evidence when it has ended."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.facts.amp import ScalerStep
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.frames import FrameTable, Magnitude
from nanodoc.facts.ops import ParameterFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.loop.history import History
from nanodoc.loop.stop import Stop
from nanodoc.measure.gradients import Vitals
from nanodoc.progress import LiveMetrics
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.optimizers import rate_of
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import BriefStep, StepState
from nanodoc.replay.weight_history import WeightHistory
from nanodoc.tensors.nested import leading_size
from nanodoc.trace.rate_names import rate_named_at
from nanodoc.watchers.learning import LearningWatch
from nanodoc.watchers.sampling import Sampler


@dataclass(slots=True)
class Outcome:
    """How a run ended. `capsule` is the tripped step's start, for the snapshot; `start` the step
    that experiments are made on: that one, a skipped one, or the last."""

    evidence: Evidence
    steps_run: int
    losses: list[float]
    grad_norms: list[float]
    skipped: int
    interrupted: bool
    capsule: StepState | None
    overhead: float | None
    start: StepState | None = None
    checkpoints: WeightHistory | None = None
    samples_per_second: float | None = None
    indices: Sequence[int] | None = None
    """The data set's indices of the samples of `capsule`, where known."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    trace_files: list[str] = field(default_factory=list)
    frames: list[FrameTable] = field(default_factory=list)
    magnitudes: tuple[Magnitude, ...] = ()
    device_lost: bool = False
    """The device answers no more: neither the model nor a replay is to be had."""


class RunMetrics:
    """What every step left behind: losses, norms, seconds, and a line in `history.jsonl`."""

    def __init__(self, runner: StepRunner, history: History | None) -> None:
        self._optimizers = runner.recipe.optimizers
        self._history = history
        self.losses: list[float] = []
        self.lossless = False
        """The last step differentiated no loss: a stage of a pipeline is sent gradients, or no step
        had a backward pass that began at one. Zeros stand in its place."""
        self._met_loss = False
        self.grad_norms: list[float] = []
        self.skipped = 0
        self.own_seconds = 0.0
        """Seconds spent on watching, as part of `step_seconds`."""
        self.step_seconds = 0.0
        self._throughputs: list[float] = []

    def step(
        self,
        capsule: StepState,
        vitals: Vitals,
        scaler: ScalerStep | None,
        seconds: float,
        *,
        left_out: bool,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """A step that went well. `left_out`: the training code itself decided not to step; `extra`
        goes into the history."""
        skipped = left_out or bool(scaler and scaler.skipped)
        self.step_seconds += seconds
        size = sum(leading_size(batch) for batch in capsule.batches)
        if size and seconds > 0:
            self._throughputs.append(size / seconds)
        self.skipped += skipped
        self.losses.append(vitals.loss)
        self.grad_norms.append(vitals.grad_norm)
        if self._history is None:
            return
        at = time.perf_counter()
        self._history.step(
            step=capsule.step,
            loss=vitals.loss,
            grad_norm=vitals.grad_norm,
            lr=rate_of(self._optimizers[0].param_groups[0]) if self._optimizers else None,
            **(extra or {}),
            scale=scaler.scale if scaler else None,
            growth_tracker=scaler.growth_tracker if scaler else None,
            found_inf=[
                {"optimizer": o, "device": device, "found": found}
                for o, device, found in scaler.found_inf
            ]
            if scaler
            else None,
            skipped_optimizers=list(scaler.skipped) if scaler else None,
            skipped=skipped,
            seconds=seconds,
            samples_per_second=size / seconds if size else None,
        )
        self.own_seconds += time.perf_counter() - at

    def met(self, losses: Sequence[torch.Tensor], outputs: int) -> None:
        """What a step has differentiated: losses, or how many outputs that were given gradients."""
        self._met_loss = self._met_loss or bool(losses)
        self.lossless = not losses and (bool(outputs) or not self._met_loss)

    def brief_step(self, step: BriefStep, loss: float, seconds: float) -> None:
        """A step that went well, watched by its loss alone; its gradient norm counts as that of the
        step before. `written_down` follows."""
        step.loss, step.seconds = loss, seconds
        self.step_seconds += seconds
        self.losses.append(loss)
        self.grad_norms.append(self.grad_norms[-1])

    def written_down(self, steps: Iterable[BriefStep]) -> None:
        """Such steps, in the history."""
        rows = []
        for step in steps:
            if step.loss is None:
                continue
            indices = step.indices
            size = len(indices) if indices else sum(map(leading_size, step.batches))
            if size and step.seconds > 0:
                self._throughputs.append(size / step.seconds)
            rate = rate_of(step.groups[0][0]) if step.groups else None
            rows.append((step.step, step.loss, rate, step.seconds))
        if self._history is not None:
            self._history.brief_steps(rows)

    def back_to(self, step: int) -> None:
        """That step was the last that went well or the first that did not: those behind it do not
        count."""
        del self.losses[step:], self.grad_norms[step:]

    def tripped(self, step: int, vitals: Vitals) -> None:
        """The step that ended the run."""
        self.losses.append(vitals.loss)
        self.grad_norms.append(vitals.grad_norm)
        if self._history is not None:
            self._history.step(
                step=step, loss=vitals.loss, grad_norm=vitals.grad_norm, tripped=True
            )

    def looked(self, inside: float, behind: float) -> None:
        """A step was looked at more closely: seconds within the step's own time, and after it."""
        self.own_seconds += inside + behind
        self.step_seconds += behind

    @property
    def usual_seconds(self) -> float:
        """Of one step, without the watching."""
        return max(self.step_seconds - self.own_seconds, 0.0) / max(len(self.losses), 1)

    @property
    def samples_per_second(self) -> float | None:
        """Of the median step."""
        return statistics.median(self._throughputs) if self._throughputs else None

    @property
    def overhead(self) -> float | None:
        """Step time with the watching over step time without."""
        bare = self.step_seconds - self.own_seconds
        return self.step_seconds / bare if bare > 0 else None


def live_metrics(course: RunMetrics, learning: LearningWatch, sampler: Sampler) -> LiveMetrics:
    """The vital signs so far."""
    waited = learning.load_seconds / max(learning.load_seconds + course.step_seconds, 1e-9)
    return LiveMetrics(
        losses=course.losses,
        grad_norms=course.grad_norms,
        rates=learning.highest_rates,
        samples_per_second=course.samples_per_second,
        update_ratios=[
            math.hypot(*sample.group_ratios) for sample in sampler.samples if sample.group_ratios
        ],
        load_share=waited,
    )


def without_device(
    course: RunMetrics,
    trouble: Stop,
    steps: int,
    ranges: tuple[RangeFacts, ...],
    *,
    interrupted: bool,
) -> Outcome:
    """What is left where the device answers nothing any more."""
    evidence = Evidence(
        steps_run=steps,
        failure=trouble.told,
        failure_step=steps,
        losses=tuple(course.losses),
        grad_norms=tuple(course.grad_norms),
        ranges=ranges,
        crash=trouble.crash,
    )
    return Outcome(
        evidence=evidence,
        steps_run=steps,
        losses=course.losses,
        grad_norms=course.grad_norms,
        skipped=course.skipped,
        interrupted=interrupted,
        capsule=trouble.capsule,
        overhead=course.overhead,
        device_lost=True,
    )


def gather(
    runner: StepRunner,
    course: RunMetrics,
    trouble: Stop,
    sick: tuple[ParameterFacts, ...],
    steps: int,
    build: BuildFacts,
    watched: Mapping[str, Any],
) -> Evidence:
    """Everything the rules may judge, when the run has ended. `watched`: what the watchers say."""
    recipe, examined = runner.recipe, trouble.examined
    made = tuple(build.optimizer_built_at(o) for o in recipe.optimizers)
    return Evidence(
        steps_run=steps,
        trip=trouble.trip,
        births=examined.births if examined else (),
        leaves=examined.leaves if examined else (),
        sick_parameters=sick,
        optimizers=trouble.optimizers,
        optimizer_step=len(course.losses) - (2 if trouble.trip else 1)
        if trouble.optimizers
        else None,
        failure=trouble.told,
        failure_step=steps if trouble.failure else None,
        optimizer_sites=made,
        rate_sites=tuple(map(_rate_site, made, recipe.optimizers)),
        criterion_site=build.criterion_made_at() if recipe.criterion is not None else None,
        model_site=build.layer_made_at(""),
        data_site=_data_site(recipe, build),
        scheduler_sites=build.schedulers_built_at(),
        learning_rates=tuple(
            rate for o in recipe.optimizers if (rate := rate_of(o.param_groups[0])) is not None
        ),
        reproduced=examined.reproduced if examined else "not_run",
        reproduction_note=examined.note if examined else "",
        losses=tuple(course.losses),
        grad_norms=tuple(course.grad_norms),
        amp=str(runner.amp_dtype).removeprefix("torch.") if runner.amp_dtype else None,
        scaler=recipe.scaler is not None,
        probed=trouble.probed,
        crash=trouble.crash,
        loads=build.loads,
        grad_off_since_build=not torch.is_grad_enabled(),
        **watched,
    )


def _rate_site(made: SourceSpan | None, optimizer: torch.optim.Optimizer) -> SourceSpan | None:
    named = None
    if made is not None:
        with contextlib.suppress(Exception):  # source and optimizers of any kind
            kind = type(optimizer).__name__
            named = rate_named_at(made, kind, optimizer.defaults.get("lr"))
    return named or made


def _data_site(recipe: Recipe, build: BuildFacts) -> SourceSpan | None:
    """Where the recipe's loader was made, or that of the loop of a script."""
    loader = loader_of(recipe.data)
    if loader is None and (drawn := getattr(recipe.train_step, "loader", None)) is not None:
        return build.loader_made_at(drawn._index_sampler)
    return build.loader_made_at(loader)
