"""The packed vital signs of one step: loss and gradient norms in one small tensor, one copy to the
host."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from nanodoc.accelerator import in_widest
from nanodoc.facts.failure_kinds import says_device_is_lost
from nanodoc.instrument.torch_private import foreach_copy_, foreach_norm
from nanodoc.tensors.packed import in_pieces
from nanodoc.tensors.plain import local_of, without_values


@dataclass(frozen=True, kw_only=True, slots=True)
class Vitals:
    """What one step's tripwire read. `norms` follow the order of the parameters given, NaN-free
    only when healthy."""

    loss: float
    """The mean of the losses given; NaN if any is not finite, or the inf itself when it is
    alone."""
    grad_norm: float
    norms: tuple[float, ...]
    """Per parameter with a gradient, in the order of `names`."""
    names: tuple[str, ...]
    extras: tuple[float, ...] = ()
    """Further scalars that travelled in the same copy, such as the loss scale."""

    def with_loss(self, loss: float) -> Vitals:
        """The same gradients with another loss: one that is not scaled."""
        # at every step: dataclasses.replace takes twice as long
        return Vitals(
            loss=loss,
            grad_norm=self.grad_norm,
            norms=self.norms,
            names=self.names,
            extras=self.extras,
        )

    def unscaled(self, scale: float) -> Vitals:
        """The same with gradient norms divided by the loss scale."""
        return replace(
            self, grad_norm=self.grad_norm / scale, norms=tuple(norm / scale for norm in self.norms)
        )

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


class Scratch:
    """The small tensors that values are packed into, kept from step to step (stacking anew costs
    twice as much)."""

    def __init__(self) -> None:
        self._packed: dict[
            tuple[int, torch.dtype, torch.device], tuple[torch.Tensor, list[torch.Tensor]]
        ] = {}

    def slots(self, count: int, like: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """A vector of `count` elements of the dtype and device of `like`, and a 0-dim view of each
        element."""
        key = (count, like.dtype, like.device)
        found = self._packed.get(key)
        if found is None:
            vector = torch.empty(count, dtype=like.dtype, device=like.device)
            found = self._packed[key] = (vector, list(vector.unbind()))
        return found


def packed_vitals(
    losses: Sequence[torch.Tensor],
    named: Sequence[tuple[str, torch.nn.Parameter]],
    extras: Sequence[torch.Tensor] = (),
    scratch: Scratch | None = None,
) -> Vitals:
    """Loss, total and per-parameter 2-norms of the gradients, read with a single device-to-host
    copy per device. Of sharded gradients this rank's parts are measured. The losses alone where
    torch cannot take the norm of one.

    Norms of half-precision gradients are taken in float32 (a float16 norm overflows at 65504).
    """
    names, grads = [], []
    for name, parameter in named:
        grad = parameter.grad
        if grad is not None:
            names.append(name)
            grads.append(grad if type(grad) is torch.Tensor else local_of(grad))
    scalars = [*losses, *extras]
    with torch.no_grad():
        try:
            values = _read_alike(grads, scalars, scratch or Scratch()) or _read_any(grads, scalars)
        except RuntimeError as error:
            if says_device_is_lost(error):
                raise
            # a gradient of a kind that has no norm: the training is not to end by that
            names, grads = [], []
            values = _read_any([], scalars)
    norms, loss_values = values[: len(grads)], values[len(grads) : len(grads) + len(losses)]
    total = math.hypot(*norms)
    return Vitals(
        loss=sum(loss_values) / len(losses) if losses else 0.0,
        grad_norm=total if math.isfinite(total) else _worst(norms),
        norms=tuple(norms),
        names=tuple(names),
        extras=tuple(values[len(grads) + len(losses) :]),
    )


def scalar_values(scalars: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors with one element each, read with a single copy per device."""
    only = scalars[0] if len(scalars) == 1 else None
    if type(only) is torch.Tensor and only.is_floating_point():  # the usual case, and a cheap one
        return [only.item()]
    return list(packed_vitals([], [], scalars).extras)


def _read_alike(
    grads: list[torch.Tensor], scalars: list[torch.Tensor], scratch: Scratch
) -> list[float] | None:
    """The usual case, in as few calls as can be: dense float32 (or float64) gradients on one
    device."""
    if not grads:
        return None
    dtype, device, layout = grads[0].dtype, grads[0].device, grads[0].layout
    if dtype is not torch.float32 and dtype is not torch.float64:
        return None
    if layout is not torch.strided:
        return None
    for tensor in itertools.chain(grads, scalars):
        if tensor.dtype is not dtype or tensor.device != device or tensor.layout is not layout:
            return None
    pieces = [
        *foreach_norm(grads, 2),
        *(scalar if scalar.dim() == 0 else scalar.reshape(()) for scalar in scalars),
    ]
    packed, slots = scratch.slots(len(pieces), grads[0])
    foreach_copy_(slots, pieces)
    read: list[float] = packed.tolist()  # the step's one synchronisation
    return read


def _read_any(grads: list[torch.Tensor], scalars: list[torch.Tensor]) -> list[float]:
    """Mixed dtypes, devices and layouts: what several accelerators hold is brought together on the
    first, and copied to the host once."""
    tensors = [_values(grad) for grad in grads]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for position, grad in enumerate(tensors):
        groups.setdefault((grad.device, grad.dtype), []).append(position)
    pieces: dict[torch.device, list[torch.Tensor]] = {}
    # where each value read belongs: norms first, then scalars
    slots: dict[torch.device, list[int]] = {}
    for (device, dtype), positions in groups.items():
        in_float32 = torch.float32 if dtype in (torch.float16, torch.bfloat16) else None
        norms = foreach_norm([tensors[p] for p in positions], 2, dtype=in_float32)
        pieces.setdefault(device, []).append(in_widest(torch.stack(norms)))
        slots.setdefault(device, []).extend(positions)
    for position, scalar in enumerate(scalars, len(tensors)):
        pieces.setdefault(scalar.device, []).append(in_widest(scalar.reshape(1)))
        slots.setdefault(scalar.device, []).append(position)
    values = [math.nan] * (len(tensors) + len(scalars))
    for parts, places in _brought_together(pieces, slots):
        # the step's one synchronisation; the CPU needs none
        for slot, value in zip(places, torch.cat(parts).tolist(), strict=True):
            values[slot] = value
    return values


def _brought_together(
    pieces: dict[torch.device, list[torch.Tensor]], slots: dict[torch.device, list[int]]
) -> Iterator[tuple[list[torch.Tensor], list[int]]]:
    """What lies on the host, and what lies on accelerators, all on the first of them; each with
    where its values belong."""
    first: torch.device | None = None
    gathered: list[torch.Tensor] = []
    places: list[int] = []
    for device, parts in pieces.items():
        if device.type == "cpu":
            yield parts, slots[device]
            continue
        first = first or device
        gathered += parts if device == first else [torch.cat(parts).to(first, non_blocking=True)]
        places += slots[device]
    if first is not None:
        yield gathered, places


def really_nonfinite(named: Sequence[tuple[str, torch.nn.Parameter]]) -> list[str]:
    """Names of the parameters whose gradient holds a NaN or inf; a norm alone can overflow over
    finite gradients."""
    return [
        name
        for name, parameter in named
        if parameter.grad is not None and not bool(torch.isfinite(_values(parameter.grad)).all())
    ]


def nonfinite_tensors(named: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
    """Names of the floating tensors that hold a NaN or inf, screened with one copy per device."""
    tensors = [tensor for _, tensor in named]
    pieces, others = in_pieces(tensors)
    sums: dict[torch.device, list[tuple[list[int], torch.Tensor]]] = {}
    alone = ((place, local_of(tensors[place])) for place in others)
    for places, tensor in itertools.chain(
        ((piece.places, piece.values) for piece in pieces),
        (([place], tensor.detach()) for place, tensor in alone if not without_values(tensor)),
    ):
        if _is_screened(tensor):
            half = tensor.dtype == torch.float16
            total = tensor.sum(dtype=torch.float32) if half else tensor.sum().float()
            sums.setdefault(tensor.device, []).append((places, total))
    suspects: list[int] = []
    for members in sums.values():
        totals = torch.stack([total for _, total in members])
        for (places, _), finite in zip(members, torch.isfinite(totals).tolist(), strict=True):
            suspects += [] if finite else places
    # a sum alone can overflow over finite values
    return [
        named[place][0]
        for place in sorted(suspects)
        if not bool(torch.isfinite(local_of(tensors[place]).detach()).all())
    ]


def _is_screened(tensor: torch.Tensor) -> bool:
    return (
        tensor.is_floating_point()
        and tensor.itemsize > 1
        and tensor.numel() > 0
        and tensor.layout == torch.strided
        and tensor.device.type != "meta"
    )


def _values(grad: torch.Tensor) -> torch.Tensor:
    grad = local_of(grad.detach())
    # sparse embedding gradients: the stored rows are what can be bad
    if grad.layout != torch.strided:
        grad = grad._values()
    return torch.view_as_real(grad) if grad.is_complex() else grad


def _worst(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(v) for v in values) else math.inf


def values_of(tensors: Sequence[torch.Tensor]) -> tuple[float, ...]:
    """The values of tensors with one element, in one copy to the host; those of subclasses are left
    out, since a sharded one would have to be gathered from other ranks."""
    with contextlib.suppress(RuntimeError):  # a device that no longer answers
        plain = [t.detach().float().reshape(()).cpu() for t in tensors if _is_plain(t)]
        return tuple(torch.stack(plain).tolist()) if plain else ()
    return ()


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and tensor.numel() == 1 and tensor.device.type != "meta"
