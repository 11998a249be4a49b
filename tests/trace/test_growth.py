"""The trace grows with the number of ops, not with the size of the activations."""

from __future__ import annotations

import tracemalloc

import pytest
import torch
from torch import nn

from nanodoc.trace.graph import StepTrace
from nanodoc.trace.tracer import Tracer


def traced(ops: int, size: int) -> tuple[StepTrace, int]:
    """A step of about `ops` ops on tensors of `size` elements, and the Python memory its trace
    takes."""
    model = nn.Linear(1, 1)
    weight = torch.ones(size, requires_grad=True)
    tracemalloc.start()
    tracer = Tracer(model, [("param:weight", weight)])
    with tracer:
        x = weight
        for _ in range(ops // 3):
            x = x * 1.0001
        x.sum().backward()
    before_reading = tracemalloc.get_traced_memory()[0]
    trace = tracer.finish()
    tracemalloc.stop()
    return trace, before_reading


@pytest.mark.slow
def test_memory_per_op_is_the_same_up_to_20_000_ops() -> None:
    small, small_bytes = traced(2_000, 4)
    large, large_bytes = traced(20_000, 4)
    assert len(large.records) > 12_000
    per_op = (small_bytes / len(small.records), large_bytes / len(large.records))
    assert per_op[1] < 1.5 * per_op[0]
    assert per_op[1] < 2_000


def test_no_tensor_of_the_step_is_kept() -> None:
    kept: list[torch.Tensor] = []
    model = nn.Linear(64, 64)
    tracer = Tracer(model, [])
    with tracer:
        model(torch.ones(64, 64)).sum().backward()
    for value in vars(tracer).values():
        if isinstance(value, list):
            kept += [item for item in value if isinstance(item, torch.Tensor)]
    assert all(tensor.dim() == 0 for tensor in kept)
