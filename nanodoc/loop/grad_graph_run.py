"""`nanodoc check-grad-graph`: some steps, forward and backward only, each with its gradient flow
followed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.grad_graph import GraphExaminer
from nanodoc.examination.late_errors import late_failure
from nanodoc.examination.parameter_groups import Ownership
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import device_is_lost, kept_from_kernel, says_device_is_lost
from nanodoc.facts.graph import CUT, LOST, GraphFacts, OwnershipFacts
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.batch_source import BatchSource
from nanodoc.replay.optimizers import copy_optimizer, restore_optimizer
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState, copy_weights
from nanodoc.tensors.modules import move_module
from nanodoc.tensors.plain import without_values
from nanodoc.tensors.sums import fingerprint


@dataclass(slots=True)
class GraphOutcome:
    """What the steps showed, the last one last."""

    steps: list[GraphFacts] = field(default_factory=list)
    failure: Failure | None = None
    ownership: OwnershipFacts | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    ranges: tuple[RangeFacts, ...] = ()
    """Indices and labels out of range that a device was kept from."""
    moved: set[str] = field(default_factory=set)
    """Parameters whose values the steps changed (they were put back)."""

    @property
    def merged(self) -> GraphFacts | None:
        """One step's facts to judge by: the failing one, else the first with most parameters left
        without a gradient."""
        if not self.steps:
            return None
        if self.failure is not None:
            return self.steps[-1]
        return max(
            self.steps, key=lambda facts: sum(p.state in (CUT, LOST) for p in facts.parameters)
        )

    @property
    def never(self) -> tuple[str, ...]:
        """Trainable parameters without a gradient in every step."""
        idle = [
            {p.name for p in facts.parameters if p.norm is None and p.state != "frozen"}
            for facts in self.steps
        ]
        return (
            tuple(
                p.name for p in self.steps[0].parameters if all(p.name in names for names in idle)
            )
            if idle
            else ()
        )

    @property
    def sometimes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Trainable parameters that lack a gradient on some steps only, with those steps."""
        lacking: dict[str, list[int]] = {}
        for facts in self.steps:
            for p in facts.parameters:
                if p.norm is None and p.state != "frozen":
                    lacking.setdefault(p.name, []).append(facts.step)
        return tuple(
            (name, tuple(steps)) for name, steps in lacking.items() if len(steps) < len(self.steps)
        )

    def evidence(self, recipe: Recipe, build: BuildFacts) -> Evidence:
        """For the rules."""
        zero = [{p.name for p in facts.parameters if p.state == "zero"} for facts in self.steps]
        return Evidence(
            steps_run=len(self.steps),
            failure=self.failure,
            failure_step=(self.steps[-1].step if self.steps else 0) if self.failure else None,
            ranges=self.ranges
            if self.failure is not None and kept_from_kernel(self.failure)
            else (),
            graph=self.merged,
            never_got_gradient=self.never,
            moved_by_hand=tuple(name for name in self.never if name in self.moved),
            steps_without_gradient=self.sometimes,
            always_zero=tuple(sorted(set.intersection(*zero))) if zero else (),
            ownership=self.ownership,
            optimizer_sites=tuple(
                build.optimizer_built_at(optimizer) for optimizer in recipe.optimizers
            ),
            grad_switched_off_at=build.grad_switched_off_at(),
        )


def run_graph_check(
    recipe: Recipe,
    build: BuildFacts,
    device: torch.device,
    amp_dtype: torch.dtype | None,
    steps: int,
) -> GraphOutcome:
    """Examines `steps` steps. Weights stay as build() left them; everything else moves on as in
    training."""
    move_module(recipe.model, device, recipe.optimizers)
    runner, keeper, feed = (
        StepRunner(recipe, device, amp_dtype),
        StateKeeper(recipe, device),
        BatchSource(recipe.data),
    )
    examiner, ownership = GraphExaminer(runner, keeper), Ownership(recipe, build)
    outcome = GraphOutcome()
    ownership.begin()
    examiner.initial = {
        name: fingerprint(p) for name, p in recipe.model.named_parameters() if not without_values(p)
    }
    for step in range(steps):
        try:
            batches = _drawn(feed, 1 if runner.observing else recipe.accumulate)
        except UserCodeError as error:
            outcome.failure = describe_failure(error)
            break
        if not batches:
            outcome.notes.append(
                ("further steps", f"the data is a one-shot iterator and ended after {step} steps")
            )
            break
        capsule = keeper.take(step, batches)
        try:
            outcome.steps.append(replace(examiner.examine(capsule), edges=examiner.edges))
            outcome.moved |= _advance(runner, capsule)
        except UserCodeError as error:
            outcome.failure = describe_failure(error)
            if not device_is_lost(outcome.failure):
                outcome.steps[step:] = [
                    replace(examiner.examine(capsule, error), edges=examiner.edges)
                ]
            break
        except RuntimeError as error:  # a look of ours was told of an error of the training's
            if not says_device_is_lost(error):
                raise
            outcome.failure = late_failure(error, runner.phase)
            break
    outcome.ranges = examiner.ranges
    if outcome.failure is not None and device_is_lost(outcome.failure):
        return outcome
    facts = ownership.facts(len(outcome.steps))
    outcome.ownership = replace(
        facts,
        missing=tuple(replace(p, moved=p.moved or p.name in outcome.moved) for p in facts.missing),
    )
    return outcome


def _drawn(feed: BatchSource, number: int) -> list[Any]:
    """The next `number` batches of the data, fewer where it ends."""
    batches: list[Any] = []
    for _ in range(number):
        drawn = feed.next()
        if drawn is None:
            break
        batches.append(drawn[0])
    return batches


def _advance(runner: StepRunner, capsule: StepState) -> set[str]:
    """The step once more, plainly, so that counters, buffers and random states move on; weights and
    optimizers don't. Returns the names of the parameters that it moved."""
    recipe = runner.recipe
    parameters = list(recipe.model.named_parameters())
    before = {name: fingerprint(p) for name, p in parameters if not without_values(p)}
    weights = copy_weights(parameters) if runner.observing else []
    optimizers = (
        [copy_optimizer(optimizer) for optimizer in recipe.optimizers] if runner.observing else []
    )
    try:
        run_step(runner, capsule.batches, scaled=False)
        return {name for name, p in parameters if name in before and fingerprint(p) != before[name]}
    finally:
        with torch.no_grad():
            for (_, parameter), saved in zip(parameters, weights, strict=False):
                if saved is not None:
                    parameter.data.copy_(saved)
        for optimizer, state in zip(recipe.optimizers, optimizers, strict=False):
            restore_optimizer(optimizer, state)
