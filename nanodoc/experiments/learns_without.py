"""What keeps a training from learning anything? The run's first steps are run again with one call
made in another way: a call that puts the samples in another order left out, a softmax along another
axis. Only of a run that has learnt nothing of what its targets say, so that any fall of the loss
means something.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nanodoc.experiments.call_site import Applied
from nanodoc.experiments.call_variants import Sites, Variant, changed_at, left_out
from nanodoc.experiments.step import Step
from nanodoc.experiments.trial import Say, StepTrials
from nanodoc.facts.plateau import comes_further, late_loss
from nanodoc.facts.source import SourceSpan
from nanodoc.facts.trials import LearnsWithout
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.spans import resolved
from nanodoc.vocabulary.calls import DRAWS, SOFTMAXES

look_through(__file__)

FAR_LOWER = 0.85
"""Times the run's own late loss."""
_MOST_ELEMENTS = 4_000_000
_MOST_AXES = 6


def learns_without(
    trials: StepTrials,
    step: Step,
    losses: Sequence[float],
    say: Say,
    only: SourceSpan | None = None,
) -> LearnsWithout | None:
    """The call which, made in another way, lets early steps of the run end at a far lower loss;
    None where there is none, and where they can't be run again. `only`: of the calls at this
    place."""
    found = step.early()
    if found is None:
        return None
    start, steps = found
    sites = _Reordering()
    trials.outcome(step.capsule, sites)
    given = losses[start.step : start.step + len(steps)]
    own = late_loss(given)
    for site in sites.found.values():
        for variant in (*site.variants, *site.after):
            where = resolved(site.place)
            if where is None or (only is not None and where.line != only.line):
                continue
            say(f"trying {len(steps)} steps {variant.text} …")
            # compiled code would run past the change, or be compiled anew with it
            with run_eagerly(), changed_at(site, where, variant, applied := Applied()):
                course = trials.course(start, steps, 0.3, f"{where.place} {variant.text}")
            if course is None:
                return None
            late = late_loss(course.losses) if course.complete and applied.yes else own
            if late < FAR_LOWER * own and (only is None or comes_further(given, course.losses)):
                return LearnsWithout(
                    op=site.name,
                    location=where,
                    was=variant.was,
                    instead=variant.text,
                    steps=len(steps),
                    loss=own,
                    without=late,
                )
    return None


class _Reordering(Sites):
    """The calls of a step that give what they are given in another order, not one that is drawn,
    and softmaxes that may be taken along another axis."""

    def __init__(self) -> None:
        super().__init__(self._axes, self._orders)
        self._drawn: list[torch.Tensor] = []

    def _axes(self, func: Any, name: str, args: Any, kwargs: Any) -> Iterator[Variant]:
        given = kwargs.get("dim", args[1] if len(args) > 1 else None)
        tensor = args[0] if args else None
        if name not in SOFTMAXES or type(given) is not int or not isinstance(tensor, torch.Tensor):
            return
        for axis in range(min(tensor.dim(), _MOST_AXES)):
            if axis != given % tensor.dim():
                yield Variant(f"along dim {axis}", f"dim={given}", _along(axis))

    def _orders(
        self, func: Any, name: str, args: Any, kwargs: Any, out: torch.Tensor
    ) -> Iterator[Variant]:
        further = (*args[1:], *kwargs.values())
        tensors: list[Any] = [value for value in further if isinstance(value, torch.Tensor)]
        first = args[0] if args else None
        if not out.is_floating_point():  # an order that is made of drawn numbers
            tensors.append(first)
        if name.startswith(DRAWS) or any(t is d for t in tensors for d in self._drawn):
            self._drawn.append(out)  # held, so that no other tensor gets its identity
            return
        with torch.no_grad(), DisableTorchFunction():
            if isinstance(first, torch.Tensor) and _in_another_order(first, out):
                yield left_out(name)


def _along(axis: int) -> Any:
    def change(func: Any, args: Any, kwargs: Any) -> Any:
        if "dim" in kwargs:
            return call(func, *args, **{**kwargs, "dim": axis})
        return call(func, args[0], axis, *args[2:], **kwargs)

    return change


def _in_another_order(first: torch.Tensor, out: torch.Tensor) -> bool:
    same = first.shape == out.shape and first.dtype == out.dtype and first is not out
    if not same or first.dim() == 0 or len(first) < 2 or first.numel() > _MOST_ELEMENTS:
        return False
    if torch.equal(first, out):
        return False
    return torch.equal(first.flatten().sort().values, out.flatten().sort().values)
