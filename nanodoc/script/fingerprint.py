"""What a step came to, to be compared bit by bit; on an accelerator, but for rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.tensors.plain import local_of
from nanodoc.trace.optimizer_steps import Closure, around_closure

_LOSS, _GRADIENT = 1e-4, 1e-2
"""How far apart, relative, two runs of one step may be whose kernels add in another order each
time: orders of magnitude more than float32 sums do, and less than another batch or dropout mask
makes."""


@dataclass(slots=True)
class Fingerprint:
    """A step's losses and gradients at its optimizer's door."""

    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """Neither a loss nor a gradient holds NaN or inf."""
        tensors = [*self.losses, *(g for g in self.gradients if g is not None)]
        return all(bool(t.isfinite().all()) for t in tensors if t.layout is torch.strided)

    def same_as(self, other: Fingerprint, *, losses_alone: bool = False) -> bool:
        """Bit by bit; `losses_alone` where gradients are not to be compared."""
        if losses_alone:
            return replace(self, gradients=[]).same_as(replace(other, gradients=[]))
        return (
            len(self.losses) == len(other.losses)
            and len(self.gradients) == len(other.gradients)
            and all(
                _same_bits(a, b)
                for mine, theirs in (
                    (self.losses, other.losses),
                    (self.gradients, other.gradients),
                )
                for a, b in zip(mine, theirs, strict=True)
            )
        )

    def near(self, other: Fingerprint, *, losses_alone: bool = False) -> bool:
        """As `same_as`, but for rounding: NaN and inf at the same places, and the rest close. The
        gradients are taken together, for one that should be zero is nothing but rounding."""
        if len(self.losses) != len(other.losses):
            return False
        if not all(_near([a], [b], _LOSS) for a, b in zip(self.losses, other.losses, strict=True)):
            return False
        return losses_alone or _near(self.gradients, other.gradients, _GRADIENT)


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor | None]:
    """Copies of the gradients that an optimizer is about to use."""
    return [
        None if p.grad is None else local_of(p.grad.detach()).clone()
        for group in optimizer.param_groups
        for p in group["params"]
    ]


def _same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    # NaN is the same as NaN here
    return bool(
        torch.equal(a, b)
        or (torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num()))
    )


def _near(
    ones: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor | None], limit: float
) -> bool:
    """The 2-norm of the difference is small beside that of the values, over all tensors."""
    if [None if a is None else a.shape for a in ones] != [
        None if b is None else b.shape for b in others
    ]:
        return False
    apart, size = 0.0, 0.0
    for a, b in zip(ones, others, strict=True):
        if a is None or b is None:
            continue
        a, b = (t.to_dense() if t.layout is not torch.strided else t for t in (a, b))
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()):
            return False
        a, b = a[finite], b[finite]
        apart += float((a - b).abs().float().square().sum())  # of complex numbers, too
        size += float(a.abs().float().square().sum())
    return apart <= limit**2 * size


@contextlib.contextmanager
def fingerprinted(
    prints: list[Fingerprint],
    around_backward: Callable[[Any], contextlib.AbstractContextManager[None]] | None = None,
) -> Iterator[None]:
    """Adds a fingerprint at the door of every optimizer's step, or behind each closure that it
    calls; where nothing steps behind the last losses, one of the losses alone. `around_backward` is
    given what is differentiated."""
    losses: list[torch.Tensor] = []
    original = torch.autograd.backward

    def seen(optimizer: torch.optim.Optimizer) -> None:
        prints.append(Fingerprint(list(losses), gradients_of(optimizer)))
        losses.clear()

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        def evaluated(closure: Closure) -> Any:
            loss = closure()
            seen(optimizer)
            return loss

        changed = around_closure(args, kwargs, evaluated)
        if changed is None:
            seen(optimizer)
        return changed

    inside = False

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:  # under a function mode torch calls it a second time
            return original(tensors, *args, **kwargs)
        losses.extend(scalars_of(tensors))
        inside = True
        try:
            with contextlib.nullcontext() if around_backward is None else around_backward(tensors):
                return original(tensors, *args, **kwargs)
        finally:
            inside = False

    hook = register_optimizer_step_pre_hook(before)
    torch.autograd.backward = backward
    try:
        yield
        if losses or not prints:
            prints.append(Fingerprint(losses, []))
    finally:
        hook.remove()
        if torch.autograd.backward is backward:
            torch.autograd.backward = original


def scalars_of(tensors: Any) -> list[torch.Tensor]:
    """The scalars among what backward() is called on, detached."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return [t.detach().clone() for t in given if isinstance(t, torch.Tensor) and t.numel() == 1]
