"""The simulated device itself: what the other tests lean on."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from nanodoc import accelerator
from tests.accelerator.device import FIRST, sim


def test_it_is_torchs_accelerator_and_has_two_devices() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    assert accelerator.current() == FIRST
    assert accelerator.every_device("sim") == (FIRST, torch.device("sim", 1))
    assert accelerator.device_name(FIRST) == "Simulated accelerator"


def test_its_backward_runs_in_a_thread_of_its_own() -> None:
    seen: list[threading.Thread] = []

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(threading.current_thread())
            return grad * 2

    x = torch.ones(3, device=FIRST, requires_grad=True)
    Spy.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert seen != [threading.main_thread()]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_it_counts_what_the_host_waits_for() -> None:
    x = torch.ones(3, device=FIRST)
    before = sim.counts()
    x.tolist()
    x.sum().item()
    torch.accelerator.synchronize(FIRST)
    x.nonzero()
    found = sim.counts().since(before)
    assert (found.copies_to_host, found.scalar_reads, found.synchronisations) == (1, 1, 2)


def test_it_counts_memory_and_ends_it() -> None:
    before = torch.accelerator.memory_allocated(0)
    x = torch.ones(1 << 20, device=FIRST)
    assert torch.accelerator.memory_allocated(0) - before == 4 << 20
    free, total = accelerator.memory_info(FIRST) or (0, 0)
    sim.configure({"SIM_MEMORY": str(total - free + (6 << 20))})
    y = x + 1
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 4\.00 MiB"):
        y + 1
    assert accelerator.peak_memory(FIRST) == torch.accelerator.max_memory_allocated(0)


def test_each_device_draws_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    first = [torch.rand(2, device=f"sim:{index}").tolist() for index in (0, 0, 1)]
    states = accelerator.random_states(accelerator.every_device("sim"))
    drawn = torch.rand(2, device=FIRST).tolist()
    assert first[0] == first[2] != first[1]
    accelerator.set_random_state(FIRST, states[FIRST])
    assert torch.rand(2, device=FIRST).tolist() == drawn
    with pytest.raises(RuntimeError, match="wrong size"):
        accelerator.set_random_state(FIRST, torch.zeros(3, dtype=torch.uint8))


def test_a_device_that_has_no_float64_says_so() -> None:
    sim.configure({"SIM_WITHOUT_FLOAT64": "1"})
    accelerator.widest.cache_clear(), accelerator.has_float64.cache_clear()
    try:
        assert accelerator.widest(FIRST) == torch.float32
        assert not accelerator.has_float64(FIRST)
        assert accelerator.has_float64(torch.device("cpu"))
    finally:
        accelerator.widest.cache_clear(), accelerator.has_float64.cache_clear()
