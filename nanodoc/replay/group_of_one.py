"""The place of the only rank of a group, for a script that asks its launcher for one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch.distributed as dist

from nanodoc.supervise.one_rank import group_of_one


@contextlib.contextmanager
def only_rank() -> Iterator[None]:
    """torchrun's variables as they are for one process, and the group that is made of them is left
    in the end. A launcher's own variables stay as they are."""
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        yield
        return
    told = group_of_one()
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    grouped = _grouped()
    try:
        yield
    finally:
        if _grouped() and not grouped:
            dist.destroy_process_group()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _grouped() -> bool:
    return dist.is_available() and dist.is_initialized()
