"""Which tensors can be measured as they are."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from nanodoc.instrument.torch_private import is_functorch_wrapped

_Tensor = torch.Tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """A dense tensor with memory of its own: no subclass with a dispatch of its own, nested,
    quantized, meta or functorch tensor, none of autograd's zeros that have no memory, and none
    whose memory was freed."""
    kind = type(tensor)
    if (
        kind is not _Tensor
        and kind is not torch.nn.Parameter
        and kind.__torch_dispatch__ is not _Tensor.__torch_dispatch__
    ):
        return False
    return not (
        tensor.is_nested
        or tensor.layout != torch.strided
        or tensor.is_quantized
        or tensor.device.type == "meta"
        # below autograd, where a tracer meets them, reading one ends the process
        or tensor._is_zerotensor()
        or is_functorch_wrapped(tensor)
        or is_freed(tensor)
    )


def is_freed(tensor: torch.Tensor) -> bool:
    """Its memory was given back (`untyped_storage().resize_(0)`), as FSDP does with what it has
    gathered: to read it ends the process."""
    return tensor.untyped_storage().size() == 0 < tensor.numel()


def is_sharded(tensor: torch.Tensor) -> bool:
    """A DTensor: this rank holds a part of it, and reading it whole is a collective."""
    kind = type(tensor)
    if kind is _Tensor or kind is torch.nn.Parameter:
        return False
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds: all of it but for a DTensor."""
    if not is_sharded(tensor):
        return tensor
    # below autograd: to_local() would record itself
    local: torch.Tensor = tensor._local_tensor  # type: ignore[attr-defined]  # of a DTensor
    return local


def local_parts(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """`local_of` each; the list itself where nothing is sharded."""
    if "torch.distributed.tensor" not in sys.modules or not any(map(is_sharded, tensors)):
        return tensors
    return [local_of(tensor) for tensor in tensors]


def without_values(tensor: torch.Tensor) -> bool:
    """A parameter or buffer that a lazy module has yet to make, or one on the meta device."""
    return is_lazy(tensor) or tensor.is_meta


def first_data(arguments: Sequence[Any]) -> int | None:
    """The place of the first argument that has rows and no gradient: what a layer is given, where
    its weights come first or a text does."""
    for at, value in enumerate(arguments):
        if isinstance(value, torch.Tensor) and not value.requires_grad and value.dim():
            return at
    return None
