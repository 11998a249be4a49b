"""Parameters of which each of several ranks holds a part."""

from __future__ import annotations

import torch
import torch.distributed as dist

from nanodoc.replay.fsdp import is_flattened
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.tensors.plain import is_sharded


def held_part(model: torch.nn.Module) -> str | None:
    """What of a model this process holds a part of, in words; None where it holds all of it."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            return f"{name}, which is sharded across ranks"
    if any(map(is_flattened, model.modules())):
        return "FullyShardedDataParallel, which is sharded across ranks"
    return None


def whole_size(model: torch.nn.Module) -> int:
    """Bytes of all its parameters, on all ranks; at most, of flattened ones."""
    flattened = any(map(is_flattened, model.modules()))
    ranks = dist.get_world_size() if flattened and dist.is_initialized() else 1
    return ranks * sum(p.numel() * p.element_size() for p in model.parameters())


def of_others_too(model: torch.nn.Module) -> str | None:
    """The same where there are several ranks: one that ran a step again by itself would wait for
    the others' parts."""
    return held_part(model) if several_ranks() else None
