"""FSDP1, told from others; and FSDP2's own state, which a step that is broken off leaves as it is
in the middle of one."""

from __future__ import annotations

import contextlib
import sys

import torch


def is_flattened(module: torch.nn.Module) -> bool:
    """A FullyShardedDataParallel, whose parameters, and so the states of its optimizers, are flat
    parts that fit as many ranks as there are."""
    return type(module).__name__ == "FullyShardedDataParallel"


def as_between_steps(model: torch.nn.Module) -> None:
    """What FSDP2 had gathered for a step that did not come to its end is let go, and the next step
    begins as any other. The memory that those parameters have is freed otherwise, while the model
    still refers to it."""
    if "torch.distributed.fsdp._fully_shard" not in sys.modules:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        reset = getattr(module, "reset_iter_state", None)  # since torch 2.13
        if reset is None:
            module.reshard()
            continue
        with contextlib.suppress(RuntimeError):  # it is asked of the outermost ones alone
            reset()
