"""The packed vital signs of one step: loss and gradient norms in one small tensor, one copy to the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Vitals:
    """What one step's tripwire read. `norms` follow the order of the parameters given, NaN-free only when healthy."""

    loss: float
    """The mean of the losses given; NaN if any is not finite, or the inf itself when it is alone."""
    grad_norm: float
    norms: tuple[float, ...]
    """Per parameter with a gradient, in the order of `names`."""
    names: tuple[str, ...]
    extras: tuple[float, ...] = ()
    """Further scalars that travelled in the same copy, such as the loss scale."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def packed_vitals(
    losses: Sequence[torch.Tensor],
    named: Sequence[tuple[str, torch.nn.Parameter]],
    extras: Sequence[torch.Tensor] = (),
) -> Vitals:
    """Loss, total and per-parameter 2-norms of the gradients, read with a single device-to-host copy per device.

    Norms of half-precision gradients are taken in float32 (a float16 norm overflows at 65504).
    """
    grads = [(name, parameter.grad) for name, parameter in named if parameter.grad is not None]
    tensors = [_values(grad) for _, grad in grads]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, grad in enumerate(tensors):
        groups.setdefault((grad.device, grad.dtype), []).append(position)
    pieces: dict[torch.device, list[torch.Tensor]] = {}
    slots: dict[torch.device, list[int]] = {}  # where each value read belongs: norms first, then scalars
    for (device, dtype), positions in groups.items():
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
        norms = torch._foreach_norm([tensors[p] for p in positions], 2, dtype=wide)
        pieces.setdefault(device, []).append(torch.stack(norms).double())
        slots.setdefault(device, []).extend(positions)
    for position, scalar in enumerate([*losses, *extras], len(tensors)):
        pieces.setdefault(scalar.device, []).append(scalar.detach().reshape(1).double())
        slots.setdefault(scalar.device, []).append(position)
    values = [math.nan] * (len(tensors) + len(losses) + len(extras))
    for device, parts in pieces.items():
        for slot, value in zip(slots[device], torch.cat(parts).tolist(), strict=True):  # the step's one synchronisation
            values[slot] = value
    norms_read, loss_values = values[: len(tensors)], values[len(tensors) : len(tensors) + len(losses)]
    return Vitals(
        loss=sum(loss_values) / len(losses) if losses else 0.0,
        grad_norm=math.hypot(*norms_read) if all(map(math.isfinite, norms_read)) else _worst(norms_read),
        norms=tuple(norms_read),
        names=tuple(name for name, _ in grads),
        extras=tuple(values[len(tensors) + len(losses) :]),
    )


def really_nonfinite(named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[str]:
    """Names of the parameters whose gradient holds a NaN or inf; a norm alone can overflow over finite gradients."""
    return [name for name, parameter in named if parameter.grad is not None and not bool(torch.isfinite(_values(parameter.grad)).all())]


def nonfinite_tensors(named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the floating tensors that hold a NaN or inf, screened with one copy per device."""
    floating = [
        (name, t.detach())
        for name, t in named
        if t.is_floating_point() and t.numel() and t.layout == torch.strided and t.device.type != "meta"
    ]
    suspects: list[str] = []
    groups: dict[torch.device, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in floating:
        groups.setdefault(tensor.device, []).append((name, tensor))
    for members in groups.values():
        sums = torch.stack([tensor.double().sum() if tensor.dtype == torch.float16 else tensor.sum().double() for _, tensor in members])
        for (name, tensor), finite in zip(members, torch.isfinite(sums).tolist(), strict=True):
            if not finite and not bool(torch.isfinite(tensor).all()):
                suspects.append(name)
    return suspects


def _values(grad: torch.Tensor) -> torch.Tensor:
    grad = grad.detach()
    if grad.layout != torch.strided:  # sparse embedding gradients: the stored rows are what can be bad
        grad = grad._values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _worst(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(v) for v in values) else math.inf
