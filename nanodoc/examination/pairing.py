"""Do the predictions belong to their targets? The relation *labels* on one step: with the targets
of other samples in place of their own, a loss that has learnt anything is higher.

The step is run once more. Where a loss function is called, it is called again on the same
predictions, with the rows of the target permuted.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nanodoc.facts.inspection import PairingFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.trace.calls import plain_name
from nanodoc.trace.spans import calling_places, resolved
from nanodoc.vocabulary.calls import SUPERVISED

look_through(__file__)

_FEWEST = 8
"""Samples whose targets are exchanged."""
_CHANGED = 0.3
"""Of the samples, those whose target is another one then: in a batch of one class it never is."""
_ORDERS = 4
_MOST_ELEMENTS = 10_000_000


class PairingLook(TorchFunctionMode):
    """A context manager around a step that is run again; `found` then has each loss function's own
    loss and that with the targets of other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[PairingFacts] = []
        self._inside = False

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = call(func, *args, **kwargs)
        asked = plain_name(func) in SUPERVISED and not self._inside
        if asked and torch.is_grad_enabled() and current_autograd_node() is None:
            self._inside = True
            try:
                self._ask(func, args, kwargs, out)
            finally:
                self._inside = False
        return out

    def _ask(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        scores = args[0] if args else kwargs.get("input")
        target = args[1] if len(args) > 1 else kwargs.get("target")
        if not isinstance(out, torch.Tensor) or not _comparable(scores, target):
            return
        if (out.dim() and out.shape[0] != len(target)) or _per_row(func, args, kwargs):
            return
        own, caller = calling_places(3)
        with torch.no_grad(), DisableTorchFunction():
            others = []
            generator = torch.Generator().manual_seed(0)
            for _ in range(_ORDERS):
                order = torch.randperm(len(target), generator=generator).to(target.device)
                moved = target[order]
                if float(_rows_differ(moved, target)) < _CHANGED:
                    continue
                if len(args) > 1:
                    again = func(args[0], moved, *args[2:], **kwargs)
                else:
                    again = func(*args, **{**kwargs, "target": moved})
                others.append(float(again.float().mean()))
            if others:
                self.found.append(
                    PairingFacts(
                        function=plain_name(func),
                        location=resolved(caller or own),
                        samples=len(target),
                        own=float(out.detach().float().mean()),
                        others=sum(others) / len(others),
                    )
                )


def _comparable(scores: Any, target: Any) -> bool:
    return (
        isinstance(scores, torch.Tensor)
        and isinstance(target, torch.Tensor)
        and scores.requires_grad
        and not target.requires_grad
        and not target.is_nested
        and target.dim() > 0
        and scores.dim() > 0
        and len(target) == len(scores) >= _FEWEST
        and target.numel() <= _MOST_ELEMENTS
    )


def _per_row(func: Any, args: Any, kwargs: Any) -> bool:
    """The loss is given weights of the samples, which belong to their targets."""
    given = dict(kwargs)
    if inspect.isfunction(func):
        given |= dict(zip(inspect.signature(func).parameters, args, strict=False))
    weight, target = given.get("weight"), given.get("target")
    if not isinstance(weight, torch.Tensor) or not isinstance(target, torch.Tensor):
        return False
    return weight.shape == target.shape


def _rows_differ(moved: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The share of rows that are others."""
    return (
        (moved != target).flatten(1).any(1).float().mean()
        if target.dim() > 1
        else (moved != target).float().mean()
    )
