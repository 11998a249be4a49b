"""Does the loss ask for what was hidden from the model? The relation *asked for* on one step.

A part of the batch that is both given to a network and compared with its output is followed along
both ways: which of its elements reach the network's input, and which the loss on the other way.
Where some are hidden from the network, a loss that asks for none of these trains it to copy what it
is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from nanodoc.facts.inspection import AskedForFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import call, of_function_mode, ours
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.tensors.nested import map_tensors, tensor_leaves
from nanodoc.trace.calls import plain_name
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_MOST_ELEMENTS = 5_000_000
_FEWEST = 0.05
"""Of the elements: those that are hidden, and those that are shown."""
_STRAY = 0.01
"""Of the elements that the loss asks for, at most so many may be hidden."""


class AskedForLook(TorchFunctionMode):
    """A context manager around a step that is run again with `batches`, whose floating-point parts
    it follows; `found` then says what the loss asked for."""

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__()
        self._leaves: list[torch.Tensor] = []
        self.batches = [map_tensors(batch, self._followed) for batch in batches]
        self.found: AskedForFacts | None = None
        self._depth = 0
        self._given: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []
        self._masked_at: Place | None = None
        self._handles: list[Any] = []

    def _followed(self, tensor: torch.Tensor) -> torch.Tensor:
        plain = tensor.is_floating_point() and tensor.dim() > 1 and not tensor.is_nested
        if not plain or tensor.requires_grad or tensor.numel() > _MOST_ELEMENTS or len(tensor) < 2:
            return tensor
        leaf = tensor.detach().clone().requires_grad_()
        self._leaves.append(leaf)
        with torch.enable_grad():
            return leaf.clone()  # no leaf itself, so that the step may write into it

    @property
    def follows(self) -> bool:
        return bool(self._leaves)

    def __enter__(self) -> AskedForLook:
        self._handles = [
            register_module_forward_pre_hook(self._entered),
            register_module_forward_hook(self._left, always_call=True),
        ]
        return super().__enter__()  # type: ignore[no-any-return]  # unannotated in torch

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        for handle in self._handles:
            handle.remove()
        self._given, self._outputs, self._leaves = [], [], []

    @ours
    def _entered(self, module: torch.nn.Module, args: Any) -> Any:
        self._depth += 1
        outermost = self._depth == 1 and next(module.parameters(), None) is not None
        if not outermost or not torch.is_grad_enabled():
            return None
        self._given += [t for _, t in tensor_leaves(args) if t.requires_grad]
        return map_tensors(args, torch.Tensor.detach)

    @ours
    def _left(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._given:
            self._outputs += [t for _, t in tensor_leaves(output) if t.requires_grad]

    @of_function_mode
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        behind = self._outputs and self._depth == 0 and self._masked_at is None
        if behind and current_autograd_node() is None and plain_name(func) not in ("get", "set"):
            with DisableTorchFunction():
                if any(map(_is_mask, (*args, *kwargs.values()))):
                    own, caller = calling_places(2)
                    self._masked_at = caller or own
        return call(func, *args, **kwargs)

    def on_loss(self, loss: torch.Tensor) -> None:
        """`loss` is about to be differentiated."""
        if self.found is not None or not self._given or not self._outputs:
            return
        with DisableTorchFunction():
            for leaf in self._leaves:
                self.found = self.found or self._compared(loss, leaf)

    def _compared(self, loss: torch.Tensor, leaf: torch.Tensor) -> AskedForFacts | None:
        asked = _reached(loss, leaf)
        generator = torch.Generator().manual_seed(0)
        mixed = sum(
            (t * torch.rand(t.shape, generator=generator).to(t)).sum()
            for t in self._given
            if t.is_floating_point()
        )
        given = _reached(mixed, leaf)
        answers = [part for o in self._outputs if (part := _reached(loss, o)) is not None]
        if asked is None or given is None or not answers:
            return None
        hidden = ~given
        shares = [float(one.float().mean()) for one in (hidden, given, asked)]
        unread = 1 - max(float(one.float().mean()) for one in answers)
        if min(*shares, unread) < _FEWEST:
            return None
        if float((asked & hidden).sum()) > _STRAY * float(asked.sum()):
            return None
        # missing values are no values, and a region that is the same for all is nobody's draw
        values = leaf.detach()[hidden]
        if float(values.std()) <= 1e-6 * float(leaf.detach().std()):
            return None
        if bool((hidden == hidden[:1]).all()):
            return None
        return AskedForFacts(hidden=shares[0], asked=shares[2], location=resolved(self._masked_at))


def _reached(of: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    """Which elements of `tensor` have a part in it; None where none has."""
    if not isinstance(of, torch.Tensor) or not of.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(of.sum(), tensor, retain_graph=True, allow_unused=True)
    return None if gradient is None else gradient != 0


def _is_mask(value: Any) -> bool:
    """Of yes and no: booleans, or numbers 0 and 1, both."""
    if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.numel() > _MOST_ELEMENTS:
        return False
    if value.dtype == torch.bool:
        return True
    if value.requires_grad or value.is_complex() or value.is_nested:
        return False
    flat = value.detach()
    return bool(((flat == 0) | (flat == 1)).all() & (flat == 1).any() & (flat == 0).any())
