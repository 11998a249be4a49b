"""Temporary changes of what a step computes in: autocast off or in another dtype, one module in
float32, everything in float64 or on the CPU.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from nanodoc.experiments.call_site import Applied, raised
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.taps import AUTOCAST_ENTERED, listening
from nanodoc.instrument.torch_private import may_swap_data
from nanodoc.replay.closure_state import ReachedState
from nanodoc.replay.step import StepRunner
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import map_tensors, takes_hooks, tensor_leaves
from nanodoc.tensors.plain import is_sharded

look_through(__file__)


@contextlib.contextmanager
def autocast_in(dtype: torch.dtype | None, applied: Applied) -> Iterator[None]:
    """Every enabled autocast context in `dtype`, or switched off with None."""

    def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
        def __enter__(context: Any) -> Any:
            if context._enabled:
                applied.yes = True
                if dtype is None:
                    context._enabled = False
                else:
                    context.fast_dtype = dtype
            return enter(context)

        return __enter__

    with listening((AUTOCAST_ENTERED, entering)):
        yield


@contextlib.contextmanager
def float32_module(module: torch.nn.Module, device: str, applied: Applied) -> Iterator[None]:
    """Autocast disabled around one module, and its half-precision arguments cast to float32; what
    it returns stays float32."""
    contexts: list[Any] = []
    if not takes_hooks(module):
        yield
        return

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        applied.yes = True
        contexts.append(torch.autocast(device, enabled=False))
        contexts[-1].__enter__()
        return raised(args), raised(kwargs)

    def leave(module: torch.nn.Module, args: Any, output: Any) -> None:
        contexts.pop().__exit__(None, None, None)

    handles = [
        module.register_forward_pre_hook(ours(enter), with_kwargs=True),
        module.register_forward_hook(ours(leave), always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def double(tensor: torch.Tensor) -> torch.Tensor:
    """Floating values in float64; everything else as it is."""
    return tensor.double() if tensor.is_floating_point() else tensor


def bytes_in_float64(runner: StepRunner, capsule: StepState) -> int:
    """What the parameters, buffers and batches take in float64, gradients included."""
    model = runner.recipe.model
    count = 2 * sum(p.numel() for p in model.parameters()) + sum(b.numel() for b in model.buffers())
    return 8 * (count + sum(tensor.numel() for _, tensor in tensor_leaves(capsule.batches)))


def _swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchanges the contents of two tensors. Raises `RuntimeError` where a graph still holds one:
    an exception of an earlier step keeps its frames, and so its graph, until they are collected."""
    try:
        torch.utils.swap_tensors(tensor, other)
    except RuntimeError:
        gc.collect()
        torch.utils.swap_tensors(tensor, other)


@contextlib.contextmanager
def converted(
    runner: StepRunner, capsule: StepState, change: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[StepState]:
    """Parameters, buffers, optimizer states, batches and what tensors a script's step reaches, as
    `change` gives them (a dtype, a device), and the capsule that goes with them.

    The parameters stay the same objects, since optimizers and the user's own code hold them.
    Autocast must be switched off separately. Everything is put back. Raises `RuntimeError` for what
    cannot be converted.
    """
    model = runner.recipe.model
    if any(map(is_sharded, model.parameters())):  # FSDP gathers from memory of its own
        raise RuntimeError("the parameters are sharded")
    held: list[tuple[torch.Tensor, torch.Tensor]] = []
    swapped: list[tuple[torch.Tensor, torch.Tensor]] = []
    default = torch.get_default_dtype()
    try:
        reached = ReachedState(runner.recipe).floating if runner.observing else []
        for tensor in (*model.parameters(), *model.buffers(), *reached):
            tensor.grad = None
            new = change(tensor.data)
            if may_swap_data(tensor, new):  # as Module.to does
                held.append((tensor, tensor.data))
                tensor.data = new
            else:  # another device: only the whole contents can be exchanged
                other = (
                    torch.nn.Parameter(new, tensor.requires_grad)
                    if isinstance(tensor, torch.nn.Parameter)
                    else new
                )
                _swap(tensor, other)
                swapped.append((tensor, other))
        if change is double:
            # what the step makes by itself (torch.zeros) must fit
            torch.set_default_dtype(torch.float64)
        yield replace(
            capsule,
            batches=[map_tensors(batch, change) for batch in capsule.batches],
            grads=None
            if capsule.grads is None
            else [None if g is None else change(g) for g in capsule.grads],
            optimizers=[
                {**o, "state": {p: map_tensors(dict(s), change) for p, s in o["state"].items()}}
                for o in capsule.optimizers
            ],
            # GradScaler keeps float32
            scaler=map_tensors(capsule.scaler, change) if change is not double else capsule.scaler,
        )
    finally:
        torch.set_default_dtype(default)
        for tensor, before in held:
            tensor.grad = None
            tensor.data = before
        for tensor, other in swapped:
            tensor.grad = None
            _swap(tensor, other)
