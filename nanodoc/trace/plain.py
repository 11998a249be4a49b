"""Which tensors can be measured as they are."""

from __future__ import annotations

import torch

_Tensor = torch.Tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """A dense tensor with memory of its own: no subclass with a dispatch of its own, nested, quantized, meta or functorch tensor."""
    kind = type(tensor)
    if kind is not _Tensor and kind is not torch.nn.Parameter and kind.__torch_dispatch__ is not _Tensor.__torch_dispatch__:
        return False
    return not (
        tensor.is_nested
        or tensor.layout != torch.strided
        or tensor.is_quantized
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
