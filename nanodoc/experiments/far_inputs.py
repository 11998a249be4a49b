"""Was it the scale of the inputs? The steps of a run that diverged, or that does better with lower
rates, from step 0, with inputs that are standardised where they enter the model."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn

from nanodoc.accelerator import in_widest
from nanodoc.experiments.past import Past, rose, spiked
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import FAR_MEAN, FAR_VALUE, TINY_VALUE, BatchLeaf
from nanodoc.facts.plateau import late_loss
from nanodoc.facts.rates import compared, far_lower
from nanodoc.facts.trials import FarInputs, RerunFacts
from nanodoc.instrument.originals import ours
from nanodoc.replay.rerun import Rerun
from nanodoc.tensors.modules import WEIGHING
from nanodoc.trace.eager import run_eagerly

_LOWER = 0.7  # times the loss that a tenth of the learning rate ends at
_LEAST = 0.1  # of the largest value of the batches: other values of the step are other inputs
_SAME = 1.01  # a batch that is still there may hold a little less than the first one
_TAKING = (*WEIGHING, nn.RNNBase)


def far_inputs(
    past: Past, model: nn.Module, evidence: Evidence, until: int, *, tiny: bool = False
) -> FarInputs | None:
    """The part of the batch that goes into the model with values far from those that layers are
    initialised for, or with next to nothing (`tiny`), where the steps up to `until` learn with it
    standardised and the rates as they are; None otherwise."""
    known = evidence.data.leaves if evidence.data is not None else ()
    leaves = [leaf for leaf in known if (leaf.tiny if tiny else leaf.far)]
    start = past.first()
    if not leaves or start is None:
        return None
    look = _Standardised(model, leaves)
    with run_eagerly(), look:
        course = past.again_from(start, until, what="standardised inputs")
    if look.leaf is None or course is None or not _learnt(course):
        return None
    return FarInputs(
        path=look.leaf.path,
        minimum=look.leaf.minimum,
        maximum=look.leaf.maximum,
        module=look.module,
        last_loss=late_loss(course.losses),
    )


def tiny_inputs(past: Past, model: nn.Module, evidence: Evidence) -> FarInputs | None:
    """The same of a run that learnt nothing from next to nothing, and learns far more from it
    standardised."""
    own = compared(evidence)
    found = far_inputs(past, model, evidence, len(own) - 1, tiny=True)
    return found if found is not None and far_lower(own, found.last_loss) else None


def better_than_slower(far: FarInputs, course: RerunFacts | None) -> bool:
    """A tenth of the learning rate does not cure the run, or ends at a far higher loss."""
    tenth = [
        stretch.last_loss
        for stretch in (course.stretches if course is not None else ())
        if stretch.passes and stretch.clip is None and stretch.last_loss is not None
        if stretch.rate >= 0.1
    ]
    return far.last_loss < _LOWER * min(tenth, default=float("inf"))


def _learnt(course: Rerun) -> bool:
    """The steps came to their end, and to a lower loss than they began with."""
    if not course.complete or not course.losses or rose(course) or spiked(course, []):
        return False
    return late_loss(course.losses) < course.losses[0]


class _Standardised:
    """While it is open, what the layers take that no weight has touched is made to have mean 0 and
    deviation 1, feature by feature as the first batch has them."""

    def __init__(self, model: nn.Module, leaves: list[BatchLeaf]) -> None:
        self._model = model
        self._leaves = leaves
        self._hooks = contextlib.ExitStack()
        self._scales: dict[str, tuple[torch.Tensor, torch.Tensor] | None] = {}
        self.leaf: BatchLeaf | None = None
        """The part of the batch that was met."""
        self.module: str | None = None

    def __enter__(self) -> _Standardised:
        for path, module in self._model.named_modules():
            if isinstance(module, _TAKING):
                hook = module.register_forward_pre_hook(ours(self._hook(path)))
                self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hooks.close()

    def _hook(self, path: str) -> Any:
        def standardise(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
            value = arguments[0] if arguments else None
            if not isinstance(value, torch.Tensor) or not value.is_floating_point():
                return None
            if path not in self._scales:
                self._scales[path] = self._scale(path, value)
            scale = self._scales[path]
            if scale is None:
                return None
            return ((value - scale[0]) / scale[1], *arguments[1:])

        return standardise

    def _scale(self, path: str, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Mean and deviation of each feature of a layer's first input; None where it is not what
        came in the batch, or not far."""
        if value.requires_grad or value.dim() < 2 or not value.numel():
            return None
        rows = in_widest(value.detach()).flatten(1)
        largest, mean = rows.abs().amax(1).median(), rows.mean(1).median()
        near = TINY_VALUE <= float(largest) <= FAR_VALUE and abs(float(mean)) <= FAR_MEAN
        if near or not float(largest):
            return None
        leaf = next((leaf for leaf in self._leaves if _holds(leaf, float(rows.abs().max()))), None)
        if leaf is None:
            return None
        if self.leaf is None:
            self.leaf, self.module = leaf, path
        # pictures and signals have their channels in dimension 1, rows their features in the last
        channels = 1 if value.dim() > 3 else value.dim() - 1
        others = [d for d in range(value.dim()) if d != channels]
        deviation, middle = torch.std_mean(value.detach(), others, correction=0, keepdim=True)
        return middle, torch.where(deviation > 0, deviation, torch.ones_like(deviation))


def _holds(leaf: BatchLeaf, largest: float) -> bool:
    most = max(abs(leaf.minimum), abs(leaf.maximum))
    return _LEAST * most < largest <= _SAME * most
