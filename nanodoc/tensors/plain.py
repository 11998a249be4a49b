"""Which tensors can be measured as they are."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

_Tensor = torch.Tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """A dense tensor with memory of its own: no subclass with a dispatch of its own, nested,
    quantized, meta or functorch tensor, and none of autograd's zeros that have no memory."""
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
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def without_values(tensor: torch.Tensor) -> bool:
    """A parameter or buffer that a lazy module has yet to make, or one on the meta device."""
    return is_lazy(tensor) or tensor.is_meta
