"""What a rank's model holds when the training is over: what the rank does to it afterwards, by
itself, is no difference between replicas."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from nanodoc.facts.ranks import AtGroupEnd
from nanodoc.heartbeat.answering import start_answering
from nanodoc.heartbeat.flight_recorder import last_collectives
from nanodoc.instrument.originals import ours
from nanodoc.measure.gradients import Vitals
from nanodoc.measure.running_buffers import running_channels
from nanodoc.replay.local_collectives import fingerprints, replicated, several_ranks
from nanodoc.replay.past_step import some_bytes
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import without_values
from nanodoc.watchers.watch import Watch

_SAMPLED = 4  # parameters of which a few bytes are compared: writes to `.data` count no version


class GroupEndWatch(Watch):
    """Told by `dist.destroy_process_group()`, or asked at the end of the run. Says nothing where
    the parameters have been written to since the last step: the best weights that were loaded
    before they are evaluated, say."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self._model = model
        self._parameters = list(model.parameters())
        self._after: tuple[Any, ...] | None = None
        self._found: AtGroupEnd | None = None
        self._several = False

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        self._several = True
        start_answering()
        original = dist.destroy_process_group

        @functools.wraps(original)
        def destroy(group: Any = None) -> None:
            # on its way out with an error, a rank may wait for its device for ever
            if group is None and sys.exc_info()[0] is None:
                self._look()
            original(group)

        dist.destroy_process_group = destroy
        try:
            yield
        finally:
            if dist.destroy_process_group is destroy:
                dist.destroy_process_group = original

    def after_step(self, start: StepState, vitals: Vitals, seconds: float) -> None:
        if several_ranks():
            self._after = self._state()

    def _state(self) -> tuple[Any, ...]:
        known = [p for p in self._parameters if not without_values(p)]
        return (
            len(list(self._model.parameters())),
            *(p._version for p in known),
            *(some_bytes(p.detach()) for p in known[:_SAMPLED]),
        )

    @ours
    def _look(self) -> None:
        # the training ends its group all the same, and has its report
        with contextlib.suppress(Exception):
            if several_ranks() and self._after is not None and self._after == self._state():
                self._found = AtGroupEnd(
                    fingerprints=fingerprints(replicated(self._model)[0]),
                    running=running_channels(self._model),
                )

    def facts(self) -> dict[str, Any]:
        self._look()
        told = last_collectives() if self._several else ()
        return {"at_group_end": self._found, "collectives": told}
