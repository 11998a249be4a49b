"""Everything of nanodoc that the benchmarks reach into, public or not: what is renamed there is
renamed here and nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nanodoc import Recipe, accelerator, cuda
from nanodoc.examination.followed_step import FollowedStep
from nanodoc.examination.grad_graph import GraphExaminer
from nanodoc.loop.brief_steps import FULL_AT_FIRST
from nanodoc.loop.engine import Engine
from nanodoc.loop.history import History
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper
from nanodoc.tensors.sums import fingerprint
from nanodoc.trace.tracer import Tracer
from nanodoc.watchers.requested_steps import LookOptions

__all__ = [
    "FULL_AT_FIRST",
    "FollowedChain",
    "MonitoredLoop",
    "Recipe",
    "Tracer",
    "accelerator",
    "cuda",
]


class MonitoredLoop:
    """A recipe under nanodoc, a step at a time; with `frames`, the ranges of every module too.
    Loops that take turns on one model share `step_numbers`.

    Without `now_and_then` no step is sampled and no copy of the weights is kept.
    """

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        amp_dtype: torch.dtype | None,
        *,
        step_numbers: Iterator[int],
        folder: Path | None = None,
        frames: bool = False,
        now_and_then: bool = True,
    ) -> None:
        self._history = History(folder) if folder is not None else None
        looks = None
        if frames:
            looks = LookOptions(steps=range(10**9), frames=True)  # type: ignore[arg-type]  # all
        self._engine = Engine(
            recipe,
            device,
            amp_dtype,
            steps=1,
            history=self._history,
            looks=looks,
            samples=now_and_then,
            checkpoints=now_and_then,
        )
        # of an accelerator this is shown first, and loops that take turns do not come to the same
        self._engine.brief.shown = True
        self._frames = frames
        self._step_numbers = step_numbers

    def step(self) -> None:
        assert self._engine._step(next(self._step_numbers)) is None
        if self._frames:
            assert self._engine.requested.tables.pop().frames

    def around_steps(self) -> contextlib.AbstractContextManager[Any]:
        """What `Engine.run` puts in place once, around the steps of a `train_step`."""
        return self._engine.amp.calls.installed()

    def sampled(self) -> dict[str, float]:
        """How many steps were sampled, and the share of the time that took."""
        sampler = self._engine.sampler
        return {"steps": len(sampler.samples), "share": sampler.share}

    def close(self) -> None:
        if self._history is not None:
            self._history.close()


class FollowedChain:
    """A recipe whose one step is run as it is, or with its gradient flow followed and judged."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe = recipe
        self._batches = list(recipe.data)
        self._runner, keeper = StepRunner(recipe, device, None), StateKeeper(recipe, device)
        self._examiner = GraphExaminer(self._runner, keeper)
        self._examiner.initial = {
            name: fingerprint(p) for name, p in recipe.model.named_parameters()
        }
        self._capsule = keeper.take(0, self._batches)
        self.ops = 0

    def bare(self) -> None:
        run_step(self._runner, self._batches)

    def follow(self) -> None:
        step = FollowedStep(self._recipe, self._batches)
        with step.watching(live=True):
            run_step(self._runner, self._batches, on_loss=step.on_loss)
        step.note_gradients()
        self.ops = len(step.trace.records)
        facts = self._examiner.judge(self._capsule, step)
        assert not facts.cuts
        assert all(p.state == "gradient" for p in facts.parameters)
