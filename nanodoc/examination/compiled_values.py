"""What a call gives, as tensors by name: its outputs and the gradients behind them; how far two
such sets are apart, and what half precision costs them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from nanodoc.facts.compiled import ApartFacts
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import TorchDispatchMode, is_any_autocast_enabled
from nanodoc.tensors.nested import map_tensors, tensor_leaves

Values = dict[str, torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)
_LARGEST = 1 << 22  # elements of what a tensor is a view of, to be copied with it


def copies_of(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor]]:
    """(args, kwargs, the tensors in them), with a copy of each tensor that is no parameter; who is
    given these writes into nothing of the training's."""
    copies: dict[int, torch.Tensor] = {}
    kept: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        if id(tensor) not in copies:
            twin = _copy(tensor)
            if tensor.requires_grad:
                twin.requires_grad_(True)
            copies[id(tensor)] = twin
            kept.append(tensor)  # so that its identity stays its own
        return copies[id(tensor)]

    return map_tensors(args, copied), map_tensors(kwargs, copied), list(copies.values())


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a copy where the tensor is a view: compiled code may have been compiled for where
    it lies in the memory of another one."""
    base = tensor._base if tensor.layout is torch.strided else None
    if base is None or base.numel() > max(_LARGEST, 4 * tensor.numel()):
        return tensor.detach().clone()
    with torch.no_grad():
        whole, strides = base.detach().clone(), tensor.stride()
        twin: torch.Tensor = whole.as_strided(tensor.shape, strides, tensor.storage_offset())
        return twin


def values_of(out: Any, inputs: list[torch.Tensor], learning: dict[str, torch.Tensor]) -> Values:
    """The floating-point outputs of a call, and, where it has a graph, the gradients of one
    weighted sum of them by what it was given and by the parameters."""
    outputs = {
        name.replace("batch", "output", 1): tensor
        for name, tensor in tensor_leaves(out)
        if tensor.is_floating_point() and tensor.layout is torch.strided
    }
    values = {name: tensor.detach().clone() for name, tensor in outputs.items()}
    heads = [tensor for tensor in outputs.values() if tensor.requires_grad and tensor.numel()]
    given = {f"input {n}": t for n, t in enumerate(inputs) if t.requires_grad}
    leaves = {**given, **learning}
    if not heads or not leaves:
        return values
    with contextlib.suppress(RuntimeError):  # a graph that can't be differentiated in parts
        gradients = torch.autograd.grad(
            heads,
            list(leaves.values()),
            [_weights(head) for head in heads],
            allow_unused=True,
        )
        for name, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None and gradient.layout is torch.strided:
                values[f"gradient of {name}"] = gradient.detach()
    return values


def _weights(head: torch.Tensor) -> torch.Tensor:
    """Of the elements of an output: 1 of a scalar; else some of either sign, the same each time."""
    if head.numel() == 1:
        return torch.ones_like(head)
    count = torch.arange(head.numel(), device=head.device, dtype=torch.float32)
    weights: torch.Tensor = torch.cos(1.7 * count) / head.numel() ** 0.5
    return weights.to(head.dtype).view(head.shape)


def apart(one: torch.Tensor, other: torch.Tensor, what: str) -> ApartFacts | None:
    """Where `one`, of compiled code, is farthest from `other`, of its source; None where they can't
    be compared. What is not finite in `one` alone is infinitely far."""
    if one.shape != other.shape or not one.numel():
        return None
    a, b = one.detach().double().flatten(), other.detach().double().flatten()
    finite = b.isfinite()
    if not bool(finite.any()):
        return None
    size = float(b[finite].abs().max())
    difference = (a - b).abs() / max(size, 1e-30)
    difference = difference.nan_to_num(nan=float("inf")).masked_fill(~finite, 0.0)
    at = int(difference.argmax())
    return ApartFacts(
        compiled=float(a[at]),
        eager=float(b[at]),
        apart=float(difference[at]),
        allowed=0.0,
        what=what,
    )


def coarsest(tensors: list[torch.Tensor], device: torch.device) -> float:
    """The distance of 1 from the next number, in the coarsest dtype that a call computes with."""
    kinds = {t.dtype for t in tensors if t.is_floating_point()} | {torch.float32}
    if is_any_autocast_enabled() and torch.is_autocast_enabled(device.type):
        kinds.add(torch.get_autocast_dtype(device.type))
    if torch.get_float32_matmul_precision() != "highest":
        kinds.add(torch.bfloat16)
    return max(torch.finfo(kind).eps for kind in kinds if kind is not torch.float64)


class InFloat32(TorchDispatchMode):
    """Inside, what would compute in half precision computes in float32."""

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widened(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.float() if tensor.dtype in _HALF else tensor

        args, kwargs = map_tensors(tuple(args), widened), map_tensors(dict(kwargs or {}), widened)
        if kwargs.get("dtype") in _HALF:
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)
