"""A loss that is not finite, and that the script looks at before it would differentiate it: `if not
math.isfinite(loss): sys.exit(1)`."""

from __future__ import annotations

from types import FrameType

import torch

from nanodoc.replay.observer import unused_loss
from nanodoc.tensors.plain import local_of


def sick_loss_in(frame: FrameType) -> torch.Tensor | None:
    """The scalar with a graph that was computed last of those among a frame's variables which are
    not finite. One that was differentiated is none of them: its step would have been sick."""
    found = [value for value in list(frame.f_locals.values()) if _is_sick(value)]
    return max(found, key=lambda loss: loss.grad_fn._sequence_nr(), default=None)


def _is_sick(value: object) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        if value.grad_fn is None or value.numel() != 1 or not value.is_floating_point():
            return False
        return not bool(torch.isfinite(local_of(value)).all())


def tell_unused(frame: FrameType) -> None:
    """Where an iteration that is run again is left in `frame`: its loss, if that is sick and was
    not differentiated, counts as its loss."""
    loss = sick_loss_in(frame)
    if loss is not None:
        unused_loss(loss)
