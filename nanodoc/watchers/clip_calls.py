"""Wraps torch's clipping, for the protocols of a step's calls. Frames of this file are looked
through when a user's line is sought (see `trace.spans`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.instrument.frames import caller, look_through
from nanodoc.instrument.torch_private import foreach_norm
from nanodoc.trace.spans import Place
from nanodoc.watchers.loop_protocol import LoopProtocol
from nanodoc.watchers.scaler_protocol import ScalerProtocol

look_through(__file__)
_MOST_NORMS = 512


class ClipCalls:
    """`here` says which line of the user's has called."""

    def __init__(
        self,
        order: ScalerProtocol,
        loop_protocol: LoopProtocol,
        here: Callable[[], Place | None],
    ) -> None:
        self._order = order
        self._loop_protocol = loop_protocol
        self._here = here
        self._clips, self._stride = 0, 1

    def _note(self, norm: torch.Tensor) -> None:
        """Keeps the norm, or every second, fourth and so on of a long run. No operation is made
        with it, since a mode of the training's own could see that."""
        kept = self._loop_protocol.clip_norms
        # with a graph it would keep that alive
        if self._clips % self._stride == 0 and norm.grad_fn is None:
            kept.append((norm, norm._version))
        if len(kept) > _MOST_NORMS:
            del kept[1::2]
            self._stride *= 2
        self._clips += 1

    def by_norm(self, original: Any) -> Any:
        """For `torch.nn.utils.clip_grad._clip_grads_with_norm_`."""

        def clip(
            parameters: Any, max_norm: float, total_norm: torch.Tensor, *args: Any, **kwargs: Any
        ) -> Any:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            grads, place = [p.grad for p in parameters if p.grad is not None], self._here()
            self._note(total_norm)
            self._order.clipped(grads, "norm", total_norm, float(max_norm), place)
            if parameters:
                self._loop_protocol.clipped(grads, float(max_norm), place)
            elif max_norm < math.inf:
                self._loop_protocol.clipped_nothing(place)
            untouched = self._order.untouched()
            out = original(parameters, max_norm, total_norm, *args, **kwargs)
            self._order.after_clip(untouched)
            return out

        return clip

    def by_value(self, original: Any) -> Any:
        """For `_group_tensors_by_device_and_dtype` of the same module: `clip_grad_value_` groups
        its gradients with this before it clamps them; so does the norm, which only reads."""

        def group(lists: Any, *args: Any, **kwargs: Any) -> Any:
            frame = caller(1)  # behind the wrapper of the calls that are watched
            if frame.f_code.co_name == "clip_grad_value_" and lists and lists[0]:
                grads, place = lists[0], self._here()
                limit = float(frame.f_locals.get("clip_value", 0.0))
                with torch.no_grad():
                    norms = foreach_norm(grads, float("inf"))
                    largest = torch.stack(
                        [norm.float().to(grads[0].device) for norm in norms]
                    ).max()
                self._order.clipped(grads, "value", largest, limit, place)
                self._loop_protocol.clipped(grads, limit, place)
            return original(lists, *args, **kwargs)

        return group
