"""Wraps what a user's own train_step calls on its GradScaler, its optimizers and schedules, its
losses, its model and torch's clipping, for one call of it.

The calls go through unchanged; `ScalerProtocol` judges when those of a scaler came, `LoopProtocol`
the others. Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any

import torch
import torch.autograd.graph

from nanodoc.instrument import taps
from nanodoc.instrument.torch_private import current_autograd_node
from nanodoc.trace.optimizer_steps import Closure, around_closure
from nanodoc.trace.spans import Place, calling_places
from nanodoc.watchers.clip_calls import ClipCalls
from nanodoc.watchers.loop_protocol import LoopProtocol
from nanodoc.watchers.scaled_losses import divided, mark_scaled, scaled_by
from nanodoc.watchers.scaler_protocol import ScalerProtocol

_MOST_LOSSES = 16


class CallWatch:
    """A context manager around each call of a train_step; `installed` around the run saves putting
    the wrappers in place each time."""

    def __init__(
        self,
        optimizers: list[torch.optim.Optimizer],
        named: list[tuple[str, torch.nn.Parameter]] | None = None,
        *,
        in_one_thread: bool = False,
    ) -> None:
        """`in_one_thread`: the step's own calls come from the thread that it runs in; those from
        others are another training's, whose gradients may be written to at any time."""
        self.order = ScalerProtocol(optimizers)
        self.loop_protocol = LoopProtocol(named or [])
        self._undo: list[Callable[[], None]] = []
        self._active = self._counting = False
        """A train_step of the run is being called; outside of it (a replay) the wrappers only pass
        through."""
        self._in_one_thread, self._thread = in_one_thread, 0
        self._only_now = False
        self._step = 0
        self._inside_step = False
        self._made_at: Place | None = None
        self.taken: list[int] = []
        self.left_out: list[int] = []
        """Optimizers (by position) that stepped in this train_step, and those whose step the scaler
        skipped."""
        self.unscaled: list[torch.Tensor] = []
        """The losses that this train_step gave to `scale`, detached."""
        self.before_update: list[torch.Tensor] | None = None
        """Scale and growth tracker as they were before this train_step's first update()."""

    def at(self, step: int) -> CallWatch:
        """Sets the number of the step that is about to run."""
        self._step = step
        return self

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Around the run: the wrappers stay in place between the steps, since every change of a
        class costs Python its caches."""
        self._install()
        try:
            yield
        finally:
            self._uninstall()

    def begin_briefly(self) -> None:
        """A step runs that is watched by its losses alone: schedules that step are counted."""
        self._counting = True

    def end_briefly(self, optimizer_steps: int) -> None:
        """It is over, and made so many optimizer steps."""
        self._counting = False
        self.loop_protocol.ever_stepped += optimizer_steps

    def __enter__(self) -> CallWatch:
        self.order.begin(self._step)
        self.loop_protocol.begin(self._step)
        self.taken, self.left_out, self.unscaled = [], [], []
        self.before_update = self._made_at = None
        self._only_now = not self._undo
        if self._only_now:
            self._install()
        self._active = True
        return self

    def __exit__(self, *exc: Any) -> None:
        self._active = False
        if self._only_now:
            self._uninstall()
        self.order.end(self._made_at)
        self.loop_protocol.end()

    def _install(self) -> None:
        self._thread = get_ident()
        clips = ClipCalls(self.order, self.loop_protocol, _here)
        for tap, listener in (
            (taps.SCALER_MADE, self._making),
            (taps.SCALE, self._scaling),
            (taps.GET_SCALE, self._reading),
            (taps.UNSCALE, self._unscaling),
            (taps.SCALER_STEP, self._stepping),
            (taps.SCALER_UPDATE, self._updating),
            (taps.BACKWARD, self._differentiating),
            (taps.ZERO_GRAD, self._clearing),
            (taps.MODULE_ZERO_GRAD, self._clearing_module),
            (taps.CLIP_BY_NORM, clips.by_norm),
            (taps.CLIP_GROUPS, clips.by_value),
            (taps.OPEN, self._opening),
            (taps.SAVE, self._saving),
        ):
            self._listen(tap, listener)
        self._listen(taps.SCHEDULER_STEP, self._scheduling, counted=True)
        # a validation between two steps may leave the model in eval mode
        self._listen(taps.MODULE_TRAIN, self._changing_mode, between=True)
        self._undo += [
            taps.BEFORE_STEP.listen(self._before_optimizer),
            taps.AFTER_STEP.listen(self._after_optimizer),
        ]

    def _uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _listen(
        self,
        tap: taps.Tap,
        listener: Callable[[Any], Any],
        *,
        between: bool = False,
        counted: bool = False,
    ) -> None:
        """`between`: it is watched between the steps, too; `counted`: in steps that are watched by
        their losses alone."""

        def watching(original: Callable[..., Any]) -> Callable[..., Any]:
            watched = listener(original)

            def called(*args: Any, **kwargs: Any) -> Any:
                watches = self._active or between or (counted and self._counting)
                if not watches or self._is_elsewhere():
                    return original(*args, **kwargs)
                return watched(*args, **kwargs)

            return called

        self._undo.append(tap.listen(watching))

    def _is_elsewhere(self) -> bool:
        return self._in_one_thread and self._thread != get_ident()

    # -- the scaler --------------------------------------------------------------------------------

    def _making(self, original: Any) -> Any:
        def init(scaler: Any, *args: Any, **kwargs: Any) -> None:
            self._made_at = _here()
            original(scaler, *args, **kwargs)

        return init

    def _scaling(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            out = original(scaler, outputs)
            if scaler.is_enabled():
                known = isinstance(out, (list, tuple)) or (
                    isinstance(out, torch.Tensor) and out.requires_grad
                )
                self.order.scale(scaler, _here(), known=known)
                losses = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
                for loss in losses[: _MOST_LOSSES - len(self.unscaled)]:
                    if isinstance(loss, torch.Tensor):
                        self.unscaled.append(loss.detach())
                mark_scaled(out, scaler)
            return out

        return scale

    def _reading(self, original: Any) -> Any:
        def get_scale(scaler: Any) -> Any:
            self.order.scale_read()
            return original(scaler)

        return get_scale

    def _unscaling(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: torch.optim.Optimizer) -> None:
            if not scaler.is_enabled():
                return original(scaler, optimizer)  # type: ignore[no-any-return]  # None
            place = _here()
            self.order.called("unscale", optimizer, place)
            original(scaler, optimizer)
            self.order.unscaled(scaler, optimizer, place)
            return None

        return unscale_

    def _stepping(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not scaler.is_enabled():
                return original(scaler, optimizer, *args, **kwargs)
            place = _here()
            self.order.called("step", optimizer, place)
            self.loop_protocol.attempted()
            before, self._inside_step = len(self.taken), True
            try:
                out = original(scaler, optimizer, *args, **kwargs)
            finally:
                self._inside_step = False
            self.order.stepped(scaler, optimizer, place)
            position = self.order.position(optimizer)
            if len(self.taken) == before and position not in self.left_out:
                self.left_out.append(position)
            return out

        return step

    def skipped_inside(self, optimizer: torch.optim.Optimizer) -> None:
        """A fused optimizer was called all the same, and left its step out by itself."""
        position = self.order.position(optimizer)
        if position in self.taken:
            self.taken.remove(position)
        if position not in self.left_out:
            self.left_out.append(position)

    def _updating(self, original: Any) -> Any:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> None:
            if not scaler.is_enabled():
                return original(scaler, *args, **kwargs)  # type: ignore[no-any-return]  # None
            if self.before_update is None:
                self.before_update = [
                    t.detach().clone()
                    for t in (scaler._scale, scaler._growth_tracker)
                    if isinstance(t, torch.Tensor)
                ]
            place = _here()
            try:
                original(scaler, *args, **kwargs)
            except BaseException:
                self.order.update(None, place)
                raise
            self.order.update(scaler, place)
            return None

        return update

    # -- the rest of the step ----------------------------------------------------------------------

    def _differentiating(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # inside another: activation checkpointing differentiates what it recomputed
            if current_autograd_node() is not None:
                return original(tensors, *args, **kwargs)
            if isinstance(tensors, Iterator):
                tensors = list(tensors)
            place, before = _here(), self.order.before_backward()
            self.loop_protocol.before_backward()
            single = isinstance(tensors, (torch.Tensor, torch.autograd.graph.GradientEdge))
            scalers = [
                scaler
                for root in ([tensors] if single else tensors)
                if (scaler := scaled_by(root)) is not None
            ]
            given = args[0] if args else kwargs.get("grad_tensors")
            out = original(tensors, *args, **kwargs)
            handed = any(
                gradient is not None
                for gradient in (given if isinstance(given, (list, tuple)) else [given])
            )
            self.order.backward(place, before, next(iter(scalers), None), given=handed)
            # another loss of the same graph
            again = bool(kwargs.get("retain_graph") or (args[1] if len(args) > 1 else False))
            self.loop_protocol.after_backward(
                place, divided=not single or again or divided(tensors)
            )
            return out

        return backward

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Before every `Optimizer.step`, whoever calls it."""
        if not self._active or self._is_elsewhere():
            return None
        self.taken.append(self.order.position(optimizer))
        place = _here()
        self.loop_protocol.before_step(optimizer, place)
        if not self._inside_step:
            self.order.stepped_by_itself(optimizer, place)

        def evaluated(closure: Closure) -> Any:
            self.loop_protocol.evaluating(optimizer)
            return closure()

        return around_closure(args, kwargs, evaluated)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._active and not self._is_elsewhere():
            self.loop_protocol.after_step(optimizer, _here())

    def _scheduling(self, original: Any) -> Any:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            self.loop_protocol.scheduled(scheduler, _here())
            return original(scheduler, *args, **kwargs)

        return step

    def _opening(self, original: Any) -> Any:
        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            self.loop_protocol.writes |= any(letter in mode for letter in "wax+")
            return original(file, mode, *args, **kwargs)

        return open_

    def _saving(self, original: Any) -> Any:
        def save(*args: Any, **kwargs: Any) -> Any:
            self.loop_protocol.writes = True
            return original(*args, **kwargs)

        return save

    def _changing_mode(self, original: Any) -> Any:
        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            self.loop_protocol.mode_set(module, mode, _here())
            out: torch.nn.Module = original(module, mode)
            return out

        return train

    def _clearing(self, original: Any) -> Any:
        def zero_grad(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.order.cleared(optimizer)
            self.loop_protocol.cleared(
                (p for group in optimizer.param_groups for p in group["params"]), _here()
            )

        return zero_grad

    def _clearing_module(self, original: Any) -> Any:
        def zero_grad(module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            original(module, *args, **kwargs)
            self.order.module_cleared(module.parameters())
            self.loop_protocol.cleared(module.parameters(), _here())

        return zero_grad


def _here() -> Place | None:
    """The user's line that made the wrapped call."""
    own, caller = calling_places(2)
    return caller or own
