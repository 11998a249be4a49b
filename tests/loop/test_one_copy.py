"""One device-to-host copy per monitored step, whoever owns the loop: on the CPU, calls that would
wait for a device are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nanodoc
from nanodoc import Recipe
from nanodoc.loop.engine import Engine

_Tensor = torch.Tensor
_WAITS = {
    _Tensor.tolist,
    _Tensor.item,
    _Tensor.numpy,
    _Tensor.cpu,
    _Tensor.__bool__,
    _Tensor.__float__,
    _Tensor.__int__,
}


class Waits(TorchFunctionMode):
    """Calls that read values of a tensor on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _WAITS:
            self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class Reads(TorchDispatchMode):
    """The same below Python: `_local_scalar_dense` is what item() and friends come to."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[tuple[Waits, Reads]]:
    with Reads() as reads, Waits() as waits:
        yield waits, reads


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(
        nanodoc.probe(nanodoc.probe(model(batch[0]), "logits"), "again").float(), batch[1]
    )


def plain(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_fn(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def scaled(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = loss_fn(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def engine(train_step: Callable[..., Any] | None, *, amp: bool) -> Engine:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    data = [(torch.randn(8, 4), torch.randint(0, 3, (8,)))]
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        train_step=train_step,
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        scaler=torch.amp.GradScaler("cpu", init_scale=256.0) if amp else None,
    )
    return Engine(
        recipe, torch.device("cpu"), torch.float16 if amp and train_step is None else None, steps=10
    )


def bare(one: Engine, *, amp: bool) -> Callable[[], Any]:
    """The same step without nanodoc: a GradScaler reads found_inf itself."""
    recipe, batch = one.recipe, next(iter(one.recipe.data))

    def run() -> None:
        (scaled if amp else plain)(recipe.model, batch, recipe.optimizer, recipe.scaler)

    return run


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("observed", [False, True])
def test_one_copy_a_step(amp: bool, observed: bool) -> None:
    one = engine((scaled if amp else plain) if observed else None, amp=amp)
    with one.watching():
        for number in range(3):
            assert one._step(number) is None  # the first step is followed, and looked at closely
        with counted() as (waits, reads):
            bare(one, amp=amp)()
        of_the_user, below = len(waits.calls), reads.count
        with counted() as (waits, reads):
            assert one._step(3) is None
    assert len(waits.calls) - of_the_user == 1, waits.calls
    assert waits.calls.count("tolist") == 1
    assert reads.count == below  # tolist() of a CPU tensor reads its memory directly
