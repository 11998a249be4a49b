"""What BatchNorm layers keep of the batches that this process saw, a few channels of each."""

from __future__ import annotations

import itertools

import torch
from torch.nn.parallel import DistributedDataParallel

from nanodoc.facts.ranks import RunningChannels
from nanodoc.instrument.torch_private import BatchNormBase
from nanodoc.tensors.plain import is_plain, without_values

_MOST_LAYERS, _MOST_CHANNELS = 16, 16


def running_channels(model: torch.nn.Module) -> tuple[RunningChannels, ...]:
    """Of layers whose buffers nobody keeps alike over the ranks; none of layers that see the
    batches of all ranks (SyncBatchNorm), and none of a DistributedDataParallel that gives every
    rank the first one's."""
    alike: set[torch.nn.Module] = set()
    for module in model.modules():
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers:
            alike |= set(module.modules())
    found = (
        RunningChannels(
            layer=name.removeprefix("module."),
            means=_first(module.running_mean),
            deviations=_first(module.running_var.clamp_min(0).sqrt()),
        )
        for name, module in model.named_modules()
        if isinstance(module, BatchNormBase)
        and not isinstance(module, torch.nn.SyncBatchNorm)
        and module not in alike
        and module.running_mean is not None
        and module.running_var is not None
        and not without_values(module.running_mean)
        and is_plain(module.running_mean)
    )
    return tuple(itertools.islice(found, _MOST_LAYERS))


def _first(values: torch.Tensor) -> tuple[float, ...]:
    few: list[float] = values.detach()[:_MOST_CHANNELS].double().cpu().tolist()
    return tuple(few)
