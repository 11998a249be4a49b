"""What a step came to, to be compared bit by bit; on an accelerator, but for rounding."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanodoc.instrument.taps import BACKWARD, BEFORE_STEP, listening
from nanodoc.tensors.plain import local_of
from nanodoc.trace.optimizer_steps import Closure, around_closure

_ULPS = 64
"""How many units in the last place two runs of one step may differ by on the CPU: some kernels take
another path under a dispatch mode (the backward pass of torch.prod), and threads share sums in
another way. A batch, a dropout mask or a state that was not put back makes far more."""
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

    def near(self, other: Fingerprint, *, exact: bool, losses_alone: bool = False) -> bool:
        """As `same_as`, but for rounding: NaN and inf at the same places, and the rest close. The
        gradients are taken together, for one that should be zero is nothing but rounding. `exact`:
        on a device whose kernels add in one order, so that only a few last digits may differ."""
        if len(self.losses) != len(other.losses):
            return False
        limits = [_digits([a]) if exact else _LOSS for a in self.losses]
        pairs = zip(self.losses, other.losses, limits, strict=True)
        if not all(_near([a], [b], min(limit, _LOSS)) for a, b, limit in pairs):
            return False
        limit = min(_digits(self.gradients), _GRADIENT) if exact else _GRADIENT
        return losses_alone or _near(self.gradients, other.gradients, limit)


def _digits(tensors: Sequence[torch.Tensor | None]) -> float:
    """`_ULPS` units in the last place, relative, of the coarsest dtype among the tensors."""
    kinds = [t.dtype for t in tensors if t is not None and t.dtype.is_floating_point]
    return _ULPS * max((torch.finfo(kind).eps for kind in kinds), default=0.0)


def differences(first: Sequence[Fingerprint], again: Sequence[Fingerprint]) -> str:
    """By how much two runs of one step differ, in words."""
    if len(first) != len(again):
        return f"it had {len(first)} optimizer steps at first and then {len(again)}"
    pairs = list(zip(first, again, strict=True))
    for mine, theirs in pairs:
        if len(mine.losses) != len(theirs.losses):
            return f"it had {len(mine.losses)} losses at first and then {len(theirs.losses)}"
        for a, b in zip(mine.losses, theirs.losses, strict=True):
            if not _same_bits(a, b):
                once, then = float(a.double().mean()), float(b.double().mean())
                return f"its loss was {once:.6g} and then {then:.6g} ({then - once:+.0e})"
    norms = [_norm(fingerprint) for pair in pairs for fingerprint in pair]
    moved = [abs(a - b) / max(a, 1e-30) for a, b in zip(norms[::2], norms[1::2], strict=True)]
    by = f", their norm by {max(moved):.0e}" if moved and max(moved) > 0 else ""
    return f"its loss was the same, its gradients differed{by}"


def _norm(fingerprint: Fingerprint) -> float:
    dense = (g for g in fingerprint.gradients if g is not None and g.layout is torch.strided)
    return math.hypot(*(float(g.double().norm()) for g in dense))


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

    def differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside:  # under a function mode torch calls it a second time
                return original(tensors, *args, **kwargs)
            losses.extend(scalars_of(tensors))
            inside = True
            around = (
                contextlib.nullcontext() if around_backward is None else around_backward(tensors)
            )
            try:
                with around:
                    return original(tensors, *args, **kwargs)
            finally:
                inside = False

        return backward

    with listening((BEFORE_STEP, before), (BACKWARD, differentiating)):
        yield
        if losses or not prints:
            prints.append(Fingerprint(losses, []))


def scalars_of(tensors: Any) -> list[torch.Tensor]:
    """The scalars among what backward() is called on, detached."""
    given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return [t.detach().clone() for t in given if isinstance(t, torch.Tensor) and t.numel() == 1]
