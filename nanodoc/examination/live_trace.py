"""A step that can't be run again, traced while the training itself ran it: one trace, in which
every op was looked at closely, answers what an examination would ask of several replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nanodoc.errors import UserCodeError
from nanodoc.examination.non_finite import Examined, Examiner
from nanodoc.replay.step_state import StepState
from nanodoc.replay.traced_replay import Replay
from nanodoc.tensors.plain import is_sharded, local_of
from nanodoc.trace.examine import Request
from nanodoc.trace.tracer import Tracer


@dataclass(frozen=True, slots=True)
class LiveStep:
    """What is known of such a step when it is over. `losses` were given to backward, `bad` are
    (name, gradient) of the gradients that are not finite; `error` is what it raised."""

    tracer: Tracer
    losses: Sequence[torch.Tensor]
    bad: Sequence[tuple[str, torch.Tensor]] = ()
    error: UserCodeError | None = None
    together: bool = False
    """The gradients are what several ranks came to together."""

    @classmethod
    def of_model(
        cls,
        model: torch.nn.Module,
        tracer: Tracer,
        losses: Sequence[torch.Tensor],
        bad: Sequence[str],
        error: UserCodeError | None = None,
    ) -> LiveStep:
        """`bad`: names of the parameters whose gradients are not finite."""
        parameters = dict(model.named_parameters())
        together = any(map(is_sharded, parameters.values()))
        if bad and together and not all(math.isfinite(value_of(loss)) for loss in losses):
            bad = ()  # the loss comes first
        named = [(n, local_of(g)) for n in bad if (g := parameters[n].grad) is not None]
        return cls(tracer, losses, named, error, together)

    def examined(self, capsule: StepState, indices: Sequence[int] | None) -> Examined:
        """The roots of what is not finite in it. `indices` are the data set's, of its batch."""
        with self.tracer.paused():
            if self.together:
                # a rank may hold none of the gradients that its own backward pass made sick
                self.tracer.mark_sent()
            for number, loss in enumerate(self.losses):
                self.tracer.mark(f"loss:{number}", loss)
            for name, gradient in self.bad:
                self.tracer.mark(f"grad:{name}", gradient)
            replay = Replay(
                self.tracer.finish(),
                [value_of(loss) for loss in self.losses],
                float("nan"),
                [name for name, _ in self.bad],
                self.error,
                len(self.losses) if self.bad else None,
            )
            return Examiner(_OneTrace(replay)).examine(capsule, None, None, indices)


def value_of(loss: torch.Tensor) -> float:
    """That of a loss; of an output whose gradient comes from another rank, a number that is finite
    where all of it is."""
    return float(loss) if loss.numel() == 1 else float(loss.abs().max()) if loss.numel() else 0.0


class _OneTrace:
    """As a `Replayer`, for an `Examiner`."""

    observing = True
    repeats = False

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def replay(self, capsule: StepState, requests: dict[int, Request] | None = None) -> Replay:
        """What was seen, whatever is asked for."""
        return self._replay

    def complete(self, capsule: StepState) -> None:
        """The trace is all that there is."""

    def rewind(self, capsule: StepState) -> None:
        """Nothing has been run."""
