"""Steps that the GradScaler skipped: which are kept, so that they can be run again without the loss
scale when the run is over.

A skip says that some gradient was not finite *at this scale*. Whether it would be without the
scale, only running the step again can tell, and that waits until the run is over: training code
keeps state in places that nobody can put back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from nanodoc.facts.amp import ScalerStep
from nanodoc.replay.optimizers import copy_optimizer
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StepState, copy_weights

_LARGEST_COPY = 1 << 30  # bytes of weights
_HOPELESS = 1.0  # GradScaler's own documentation: a scale below 1 means that something is wrong


@dataclass(frozen=True, slots=True)
class KeptSkip:
    """A skipped step. `proven` is the largest scale at which a step had been taken before it."""

    capsule: StepState
    scale: float
    proven: float | None


class SkipWatch:
    """Told of every step of a run with a GradScaler."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._named = list(runner.recipe.model.named_parameters())
        self._weights: Collection[torch.Tensor | None] | None = None
        self._optimizers: list[dict[str, object]] = []
        self._proven: float | None = None
        self._first: KeptSkip | None = None
        self._calibrating: KeptSkip | None = None
        self._suspect: KeptSkip | None = None
        self._lowest: KeptSkip | None = None
        self.steps: list[ScalerStep] = []
        self.too_large = False
        self.of_steps_before = False
        """One was skipped at the start of the iteration behind the one that made its gradients."""

    @property
    def hopeless(self) -> bool:
        """The scale has fallen below 1: no scale will do, and waiting is no use."""
        return (
            bool(self.steps) and bool(self.steps[-1].skipped) and self.steps[-1].scale < _HOPELESS
        )

    def kept(self) -> list[KeptSkip]:
        """The skipped steps worth another look, the most telling first: one at a scale that had
        worked before, then the one at the lowest scale, then the first and the last of the
        calibration."""
        found: list[KeptSkip] = []
        for kept in (self._suspect, self._lowest, self._first, self._calibrating):
            if kept is not None and all(kept.capsule is not other.capsule for other in found):
                found.append(kept)
        return found

    def note(self, step: ScalerStep, capsule: StepState) -> None:
        """Before the optimizers move, or after a train_step that stepped none of them (else the
        capsule must hold the weights)."""
        self.steps.append(step)
        if not step.skipped:
            self._proven = max(self._proven or 0.0, step.scale)
            self._weights = None
            return
        wanted_lowest = self._lowest is None or step.scale < self._lowest.scale
        proven = self._proven is not None and step.scale <= self._proven
        if not (self._proven is None or wanted_lowest or (proven and self._suspect is None)):
            return
        kept = self._keep(capsule, step)
        if kept is None:
            return
        if self._proven is None:
            self._first, self._calibrating = self._first or kept, kept
            return
        if proven and self._suspect is None:
            self._suspect = kept
        elif wanted_lowest and proven:
            self._lowest = kept

    def moved(self) -> None:
        """Some optimizer has stepped: a copy of the weights taken before is not those of the next
        step."""
        self._weights = None

    def _keep(self, capsule: StepState, step: ScalerStep) -> KeptSkip | None:
        weights, optimizers = capsule.weights, capsule.optimizers
        if weights is None:
            if self._weights is None:
                if sum(p.numel() * p.element_size() for _, p in self._named) > _LARGEST_COPY:
                    self.too_large = True
                    return None
                self._weights = copy_weights(self._named)
                self._optimizers = (
                    [copy_optimizer(o) for o in self._runner.recipe.optimizers]
                    if self._runner.observing
                    else []
                )
            weights, optimizers = self._weights, self._optimizers
        # the keeper reuses its copies of the buffers in the next step
        buffers = [
            (m, name, b, None if saved is None else saved.clone())
            for m, name, b, saved in capsule.buffers
        ]
        kept = replace(capsule, buffers=buffers, weights=weights, optimizers=optimizers)
        return KeptSkip(kept, step.scale, self._proven)


def at_scale(capsule: StepState, device: torch.device, scale: float = 1.0) -> StepState:
    """The capsule with another loss scale; 1 is none at all."""
    if capsule.scaler is None:
        return capsule
    known, tracker = capsule.scaler.get("_scale"), capsule.scaler.get("_growth_tracker")
    # the first step's: the scaler makes its tensors when it scales for the first time
    if known is None:
        known, tracker = (
            torch.ones((), device=device),
            torch.zeros((), dtype=torch.int32, device=device),
        )
    return replace(
        capsule,
        scaler={
            **capsule.scaler,
            "_scale": torch.full_like(known, scale),
            "_growth_tracker": tracker,
        },
    )
