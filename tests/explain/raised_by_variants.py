"""Errors whose message or frames tell which of several causes it was, raised for real:
`raises_<id>`."""

from __future__ import annotations

import importlib
import io
import os
import sys
import types
from typing import Any

import numpy
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


def raises_numpy_alias_removed() -> None:
    numpy.float  # noqa: B018  # to ask for it is the mistake under test


def raises_own_module_not_found() -> None:
    importlib.import_module("models")


def raises_checkpoint_module_moved() -> None:
    module = types.ModuleType("models")
    exec("class Net: pass", module.__dict__)
    sys.modules["models"] = module
    file = io.BytesIO()
    try:
        torch.save(module.Net(), file)
    finally:
        del sys.modules["models"]
    file.seek(0)
    torch.load(file, weights_only=False)


def raises_memory_full() -> None:
    bytearray(2**62)


# shapes


def raises_conv_channels_last() -> None:
    nn.Conv2d(3, 8, 3)(torch.randn(2, 8, 8, 3))


def raises_output_broadcast() -> None:
    torch.randn(1, 4, 4).sub_(torch.randn(3, 1, 1))


def raises_slice_assignment() -> None:
    out, row = torch.zeros(2, 4), torch.zeros(5)
    out[0] = row


def raises_product_of_scalars() -> None:
    torch.mm(torch.randn(2, 3, 4), torch.randn(4, 5))


def raises_product_of_scalars__matmul() -> None:
    torch.matmul(torch.tensor(1.0), torch.randn(2, 2))


def raises_empty_list_of_tensors() -> None:
    torch.cat([])


def raises_empty_list_of_tensors__stack() -> None:
    torch.stack([])


def raises_cat_of_scalars() -> None:
    torch.cat([torch.tensor(1.0), torch.tensor(2.0)])


def raises_iteration_over_scalar() -> None:
    list(torch.tensor(1.0))


def raises_dimension_of_scalar() -> None:
    torch.tensor(1.0).size(0)


def raises_reduction_of_nothing() -> None:
    torch.empty(0).max()


def raises_reduction_of_nothing__dim() -> None:
    torch.empty(2, 0).max(dim=1)


def raises_gather_dimensions() -> None:
    torch.randn(3, 4).gather(1, torch.tensor([0, 1, 2]))


def raises_gather_dimensions__size() -> None:
    torch.randn(2, 4).gather(1, torch.zeros(3, 1, dtype=torch.long))


def raises_target_of_larger_image() -> None:
    F.cross_entropy(torch.randn(2, 3, 4, 4), torch.zeros(2, 8, 8, dtype=torch.long))


def raises_batch_norm_dimensions() -> None:
    nn.BatchNorm2d(3)(torch.randn(2, 3))


def raises_batch_norm_dimensions__1d() -> None:
    nn.BatchNorm1d(3)(torch.randn(2, 3, 4, 4))


def raises_packed_lengths_order() -> None:
    pack_padded_sequence(torch.randn(2, 3, 4), torch.tensor([2, 3]), batch_first=True)


def raises_packed_lengths_device() -> None:
    torch._VF._pack_padded_sequence(torch.randn(2, 3, 4), torch.tensor([3.0, 2.0]), True)


def raises_rnn_dimensions() -> None:
    nn.LSTM(4, 5)(torch.randn(1, 2, 3, 4))


def raises_rnn_dimensions__state() -> None:
    nn.GRU(4, 5)(torch.randn(3, 4), torch.randn(1, 1, 5))


def raises_layer_input_dimensions() -> None:
    nn.MaxPool2d(2)(torch.randn(2, 8))


def raises_padding_mask_shape() -> None:
    x = torch.randn(5, 2, 4)
    nn.MultiheadAttention(4, 2)(x, x, x, key_padding_mask=torch.zeros(5, 2, dtype=torch.bool))


def raises_ctc_lengths() -> None:
    F.ctc_loss(
        torch.randn(5, 2, 4).log_softmax(-1),
        torch.ones(2, 3, dtype=torch.long),
        torch.tensor([6, 5]),
        torch.tensor([3, 3]),
    )


def raises_class_weights() -> None:
    F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 1]), weight=torch.ones(2))


def raises_image_size_of_model() -> None:
    transformers.ViTModel(
        transformers.ViTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            image_size=8,
            patch_size=4,
        )
    )(torch.randn(1, 3, 16, 16))


# autograd, dtypes and devices


def raises_in_place_by_optimizer() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(torch.randn(4, 2)).sum()
    out.backward(retain_graph=True)
    optimizer.step()
    out.backward()


def raises_derivative_missing() -> None:
    F.nll_loss(
        torch.randn(2, 3), torch.tensor([0, 1]), weight=torch.ones(3, requires_grad=True)
    ).backward()


def raises_gradient_of_constant() -> None:
    x = torch.randn(2)
    torch.autograd.grad(torch.randn(2, requires_grad=True).sum(), x)


class Dirty(torch.autograd.Function):
    """A function that says it changes its input and returns another tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x + 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def raises_dirty_not_returned() -> None:
    Dirty.apply(torch.randn(2, requires_grad=True) * 1)


def raises_gradient_times_none() -> None:
    0.1 * torch.randn(2, requires_grad=True).grad  # type: ignore[operator]


def raises_gradient_times_none__minus() -> None:
    torch.randn(2) - None  # type: ignore[operator]


def raises_labels_of_int32() -> None:
    F.cross_entropy(torch.randn(2, 3), torch.tensor([0, 1], dtype=torch.int32))


def raises_integer_input() -> None:
    nn.Linear(2, 3)(torch.tensor([[1, 2]]))


def raises_integer_logits() -> None:
    F.cross_entropy(torch.tensor([[1, 2, 3]]), torch.tensor([0]))


def raises_binary_target_of_integers() -> None:
    F.binary_cross_entropy_with_logits(torch.randn(2), torch.tensor([0, 1]))


def raises_class_probabilities_dtype() -> None:
    F.cross_entropy(torch.randn(2, 3), torch.eye(3, dtype=torch.long)[:2])


def raises_mixed_dtype_norm() -> None:
    nn.LayerNorm(4, dtype=torch.float64)(torch.randn(2, 4, dtype=torch.bfloat16))


def raises_attention_dtypes() -> None:
    q = torch.randn(1, 1, 2, 4)
    F.scaled_dot_product_attention(q, q, q.half())


def raises_devices_meta() -> None:
    nn.Linear(2, 3, device="meta")(torch.randn(1, 2))


def raises_dtype_not_inferred() -> None:
    torch.tensor([1, None])


def raises_rank_variable_missing() -> None:
    os.environ["LOCAL_RANK"]
