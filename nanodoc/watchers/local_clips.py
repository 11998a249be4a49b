"""Gradients that a rank clips by the norm of the parts that it holds itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from nanodoc.facts.ranks import LocalClip
from nanodoc.instrument.taps import CLIP_BY_NORM, listening
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch


class LocalClipWatch(Watch):
    """Told by `torch.nn.utils.clip_grad_norm_` while several ranks train."""

    def __init__(self) -> None:
        super().__init__()
        self._times = 0
        self._place: Place | None = None
        self._norm: Any = None

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        with listening((CLIP_BY_NORM, self._clipping)):
            yield

    def _clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(
            parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            if not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)
            if max_norm < math.inf and _held_in_parts(parameters):
                self._times += 1
                if self._place is None:
                    own, caller = calling_places(2)
                    self._place, self._norm = caller or own, total_norm
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return clip

    def facts(self) -> dict[str, Any]:
        if not self._times:
            return {}
        norm = float(self._norm)
        return {"local_clip": LocalClip(times=self._times, norm=norm, at=resolved(self._place))}


def _held_in_parts(parameters: Any) -> bool:
    """Some are of a FullyShardedDataParallel that shards them: plain tensors, whose norm is that of
    this rank's part. DTensors know of the others."""
    several = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    for parameter in several:
        if getattr(parameter, "_fsdp_flattened", False):
            whole = getattr(parameter, "_unpadded_unsharded_size", parameter.shape)
            # with use_orig_params a rank holds some of them not at all
            if parameter.numel() in range(whole.numel()) or not parameter.numel():
                return True
    return False
