"""What a rank's model holds when the training leaves its process group: what the rank does to it
afterwards, by itself, is no difference between replicas."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from nanodoc.facts.ranks import AtGroupEnd
from nanodoc.measure.running_buffers import running_channels
from nanodoc.replay.local_collectives import fingerprints, replicated, several_ranks
from nanodoc.watchers.watch import Watch


class GroupEndWatch(Watch):
    """Told by `dist.destroy_process_group()`."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model
        self._found: AtGroupEnd | None = None

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        original = dist.destroy_process_group

        @functools.wraps(original)
        def destroy(group: Any = None) -> None:
            if group is None and several_ranks():
                with contextlib.suppress(Exception):  # the training ends its group all the same
                    self._found = at_group_end(self._model)
            original(group)

        dist.destroy_process_group = destroy
        try:
            yield
        finally:
            if dist.destroy_process_group is destroy:
                dist.destroy_process_group = original

    def facts(self) -> dict[str, Any]:
        return {"at_group_end": self._found}


def at_group_end(model: torch.nn.Module) -> AtGroupEnd:
    """As long as the rank is in its group."""
    return AtGroupEnd(
        fingerprints=fingerprints(replicated(model)[0]), running=running_channels(model)
    )
