"""A sick step of a model whose parts lie on several ranks is run again by all of them together,
collectives and all: no rank could do so alone. All have to say first that they will, for one that
did not would let the others wait.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from nanodoc.errors import UserCodeError
from nanodoc.heartbeat.trail import here
from nanodoc.measure.gradients import really_nonfinite
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.observer import Observer
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.replay.traced_replay import leaves_of
from nanodoc.tensors.host_memory import free_host_memory
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import local_of
from nanodoc.trace.eager import run_eagerly
from nanodoc.trace.examine import EveryOp
from nanodoc.trace.threads import in_one_thread
from nanodoc.trace.tracer import Tracer

Found = TypeVar("Found")

_PATIENCE = 10.0
"""Seconds that the first rank waits for the others to be sick in the same step: what is not finite
on one usually comes to all with the next collective, and each gets there at about the same time.
Less where the parents see that another has gone on."""
_PAUSE = 0.02
_SHARE = 0.5  # of the host's free memory, for copies of weights
_VERDICT, _GO, _NO, _RUN = "verdict", "go", "no", "run"


def all_agree(step: int, on: str = _RUN) -> bool:
    """Every rank of the run has asked this for the same step and the same thing, and each is told
    the same. Through the store that the training's process group met at: no collective is run."""
    store = store_of(step, on)
    if store is None:
        return False
    rank, size = dist.get_rank(), dist.get_world_size()
    here().ask(step if on == _RUN else None)
    try:
        store.set(str(rank), "")
        if rank == 0:
            all_there = _has(store, [str(other) for other in range(size)], _PATIENCE)
            return _decided(store, _GO if all_there else _NO) == _GO
        # the first rank may be well, and never come; what is written down, all come to
        if on != _RUN or _has(store, ["0"], _PATIENCE):
            _has(store, [_VERDICT], 2 * _PATIENCE)
        return _decided(store, _NO) == _GO  # another may have said otherwise a moment ago
    except RuntimeError:  # the process that keeps the store is gone
        return False
    finally:
        here().ask(None)


def all_told(step: int, on: str, word: str) -> list[str]:
    """What every rank says of something, in the order of the ranks; all have to call it. Raises
    `RuntimeError` where one does not."""
    store = store_of(step, on)
    rank, names = dist.get_rank(), [str(rank) for rank in range(dist.get_world_size())]
    if store is None:
        raise RuntimeError("the ranks share no store")
    store.set(names[rank], word)
    if not _has(store, names, 2 * _PATIENCE):
        raise RuntimeError("a rank did not answer")
    return [store.get(name).decode() for name in names]


def _has(store: Any, keys: list[str], seconds: float) -> bool:
    """Whether it has all of them in time, and before a rank is seen to have gone on, where that was
    asked. `wait` would print a warning of torch's where not."""
    until = time.monotonic() + seconds
    while not store.check(keys):
        here().sign()  # to wait for another rank is no hang
        if time.monotonic() > until or here().answered:
            return False
        time.sleep(_PAUSE)
    return True


def _decided(store: Any, word: str) -> str:
    """The first word that any rank has said."""
    said: bytes = store.compare_set(_VERDICT, "", word)
    return said.decode()


def store_of(step: int, on: str) -> Any:
    """Where the ranks tell each other of this step; None where their group met otherwise."""
    if not dist.is_initialized():
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        store = dist.distributed_c10d._get_default_store()
    except (RuntimeError, AttributeError):  # a group that met otherwise
        return None
    return dist.distributed_c10d.PrefixStore(f"nanodoc/{attempt}/{step}/{on}", store)


def local_bytes(recipe: Recipe) -> int:
    """What this rank holds of the weights and the optimizers' states."""
    parts: list[torch.Tensor] = list(recipe.model.parameters())
    for optimizer in recipe.optimizers:
        parts += [t for state in optimizer.state.values() for _, t in tensor_leaves(state)]
    return sum(local.numel() * local.element_size() for local in map(local_of, parts))


@contextlib.contextmanager
def weights_kept(runner: StepRunner, keeper: StateKeeper) -> Iterator[bool]:
    """This rank's weights and optimizers are afterwards as they are now. False where there is no
    room for copies of them: they are then moved by what runs inside."""
    size = local_bytes(runner.recipe)
    free = free_host_memory()
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if free is not None and size * beside > _SHARE * free:
        yield False
        return
    with state_preserved(runner, keeper, moving=True, on_host=True):
        yield True


@dataclass(frozen=True, slots=True)
class Together(Generic[Found]):
    """What a step came to that all ranks ran."""

    losses: list[torch.Tensor]
    """What was differentiated: losses, or outputs whose gradients come from another rank."""
    found: Found | None
    """What was made of the trace; None where the step was well here, or raised."""


def run_together(
    runner: StepRunner,
    keeper: StateKeeper,
    capsule: StepState,
    examined: Callable[[Tracer, Sequence[torch.Tensor], Sequence[str]], Found],
) -> Together[Found]:
    """Runs the step again, traced; every rank has to do so. `examined` is told of the trace, the
    losses and the names of what has sick gradients when any of it is not finite, before the
    optimizer that would use them steps. The weights are moved afterwards."""
    keeper.restore(capsule)
    model = runner.recipe.model
    named = list(model.named_parameters())
    batches = [runner.moved(batch) for batch in capsule.batches]
    tracer = Tracer(model, leaves_of(model, batches), EveryOp())
    losses: list[torch.Tensor] = []
    found: list[Found] = []

    def on_gradients() -> None:
        if found:
            return
        with tracer.paused():
            bad = really_nonfinite(named)
            finite = all(bool(torch.isfinite(loss).all()) for loss in losses)
        # a rank may hold none of the gradients that its own backward pass made sick
        if bad or not finite or tracer.mark_sent():
            found.append(examined(tracer, losses, bad))

    observer = Observer(runner.recipe, named, expected_steps=1)
    observer.on_output = lambda output: losses.append(output.detach())
    raising = contextlib.suppress(UserCodeError)
    with run_eagerly(), in_one_thread(model), warnings_unsaid(), raising, tracer:
        run_step(
            runner,
            batches,
            on_loss=lambda loss: losses.append(loss.detach()),
            on_gradients=on_gradients,
            observer=observer,
        )
        if not observer.optimizer_steps:  # it was left for its loss
            on_gradients()
    return Together(losses, found[0] if found else None)
