"""Errors that a device reports later than they happen.

A kernel runs after the call that launched it has returned. An index out of range, an illegal
address or a broken kernel is told to whatever waits for the device next: the training's own
`.item()`, or our look at the vital signs. Either way it is the training's error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from nanodoc import accelerator
from nanodoc.errors import Phase, UserCodeError
from nanodoc.examination.traceback import describe_failure
from nanodoc.facts.failure import Failure
from nanodoc.facts.failure_kinds import says_device_is_lost


def late_error(devices: Iterable[torch.device]) -> BaseException | None:
    """Waits for the devices of a training, and returns an error that one had not told yet."""
    try:
        for device in devices:
            accelerator.synchronize(device)
    except RuntimeError as error:
        if says_device_is_lost(error):
            return error
    return None


def late_failure(error: BaseException, phase: Phase) -> Failure:
    """The facts of such an error. Where it was noticed says nothing, so that it names no line."""
    return replace(
        describe_failure(UserCodeError(error, phase)), torch_function=None, frames=(), origin=""
    )
