"""Warnings that are often pasted, given for real: `raises_<id>`, as the tests make errors of
warnings."""

from __future__ import annotations

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def raises_deprecated_amp() -> None:
    torch.cuda.amp.GradScaler()


def raises_scaler_without_gpu() -> None:
    torch.amp.GradScaler("cuda")


def raises_scheduler_epoch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    schedule.step(3)


def raises_array_not_writable() -> None:
    torch.from_numpy(numpy.frombuffer(b"abcd", dtype=numpy.uint8))


def raises_deviation_of_one() -> None:
    torch.tensor([1.0]).std()


def raises_tensor_of_arrays() -> None:
    torch.tensor([numpy.zeros(2), numpy.zeros(2)])


def raises_softmax_without_dim() -> None:
    F.softmax(torch.randn(2, 3))


def raises_pin_memory_without_gpu() -> None:
    list(DataLoader([1], pin_memory=True))  # type: ignore[arg-type]


def raises_checkpoint_reentrant_unset() -> None:
    torch.utils.checkpoint.checkpoint(nn.Linear(2, 2), torch.randn(1, 2, requires_grad=True))


def raises_meshgrid_indexing() -> None:
    torch.meshgrid(torch.zeros(2), torch.zeros(2))


def raises_masks_of_two_dtypes() -> None:
    x = torch.randn(3, 2, 4)
    layer = nn.MultiheadAttention(4, 1)
    layer(
        x, x, x, key_padding_mask=torch.zeros(2, 3, dtype=torch.bool), attn_mask=torch.zeros(3, 3)
    )


def raises_nested_tensor_off() -> None:
    nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 1)


def raises_transpose_of_many() -> None:
    torch.zeros(2, 3, 4).T  # noqa: B018  # to ask for it is the mistake under test


def raises_reduction_options() -> None:
    nn.MSELoss(size_average=True)


def raises_old_names() -> None:
    nn.init.kaiming_normal(torch.zeros(2, 2))


def raises_old_names__overload() -> None:
    torch.zeros(2).add_(2, torch.zeros(2))  # type: ignore[call-overload]


def raises_empty_initialisation() -> None:
    nn.Linear(0, 2)


def raises_rnn_dropout_of_one_layer() -> None:
    nn.LSTM(2, 2, dropout=0.5)


def raises_output_resized() -> None:
    torch.add(torch.zeros(3), torch.zeros(3), out=torch.zeros(2))


def raises_backward_hook_kind() -> None:
    layer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layer.register_backward_hook(lambda *_: None)
    layer(torch.randn(1, 2, requires_grad=True)).sum().backward()
