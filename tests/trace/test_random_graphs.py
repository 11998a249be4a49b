"""Random programs with one planted birth: whatever surrounds it, the planted op and its line are
named, and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanodoc import Recipe
from tests.helpers import line_of, run_engine

WIDTH = 6
PLAIN = [
    "tanh",
    "scale",
    "matmul",
    "transpose",
    "slice",
    "reshape",
    "add_inplace",
    "row_inplace",
    "fork",
    "join",
    "softmax",
    "mask",
    "chunk",
]
FORWARD = ["log of zero", "division by zero", "sqrt of a negative", "overflow"]
BACKWARD = ["sqrt of zero", "power at zero", "acos of one"]


class Program(nn.Module):
    """Interprets a list of instructions on a square matrix; each op has a line of its own."""

    def __init__(self, instructions: list[str]) -> None:
        super().__init__()
        self.instructions = instructions
        self.weight = nn.Parameter(
            torch.eye(WIDTH) + 0.01 * torch.arange(WIDTH * WIDTH).reshape(WIDTH, WIDTH) / WIDTH
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = x @ self.weight, []
        for instruction in self.instructions:
            if instruction == "tanh":
                x = torch.tanh(x)
            elif instruction == "scale":
                x = x * 0.9 + 0.05
            elif instruction == "matmul":
                x = (x @ self.weight) / WIDTH
            elif instruction == "transpose":
                x = x.t().contiguous()
            elif instruction == "slice":
                x = torch.cat([x[:2], x[2:] * 1.01])
            elif instruction == "reshape":
                x = x.reshape(-1).view(WIDTH, WIDTH)
            elif instruction == "add_inplace":
                x = x.clone().add_(0.125)
            elif instruction == "row_inplace":
                y = x.clone()
                y[1] = x[2] * 0.5
                x = y
            elif instruction == "fork":
                kept.append(x)
            elif instruction == "join" and kept:
                x = (x + kept.pop()) * 0.5
            elif instruction == "softmax":
                x = torch.softmax(x, dim=1)
            elif instruction == "mask":
                x = torch.softmax(
                    x.masked_fill(torch.eye(WIDTH, dtype=torch.bool), float("-inf")), dim=1
                )
            elif instruction == "chunk":
                x = torch.cat(x.chunk(2, dim=1), dim=1)
            elif instruction in FORWARD + BACKWARD:
                x = self.plant(instruction, x)
        return x

    def plant(self, instruction: str, x: torch.Tensor) -> torch.Tensor:
        hole = torch.zeros_like(x)
        hole[3, 4] = 1.0
        if instruction == "log of zero":
            safe = x * x * (1 - hole) + (1 - hole) * 0.1
            return torch.log(safe)  # planted: log of zero
        if instruction == "division by zero":
            divisor = 2.0 - 2.0 * hole
            return x / divisor + 0.0  # planted: division by zero
        if instruction == "sqrt of a negative":
            safe = x * x + 1.0 - 1e6 * hole * (1 + x * x)
            return torch.sqrt(safe)  # planted: sqrt of a negative
        if instruction == "overflow":
            big = 200.0 * hole + x.tanh() * (1 - hole)
            return torch.exp(big)  # planted: overflow
        if instruction == "sqrt of zero":
            safe = x * x * (1 - hole) + 0.1 * (1 - hole)
            return torch.sqrt(safe)  # planted: sqrt of zero
        if instruction == "power at zero":
            safe = x * x * (1 - hole) + 0.1 * (1 - hole)
            return torch.pow(safe, 0.3)  # planted: power at zero
        safe = x.tanh() * 0.5 * (1 - hole) + hole
        return torch.acos(safe)  # planted: acos of one


def recipe(instructions: list[str]) -> Recipe:
    torch.manual_seed(0)
    model = Program(instructions)
    x = torch.rand(WIDTH, WIDTH) + 0.5
    return Recipe(
        model=model,
        loss_fn=lambda model, batch: model(batch).mean(),
        data=[x],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )


programs = st.tuples(
    st.lists(st.sampled_from(PLAIN), min_size=2, max_size=25),
    st.lists(st.sampled_from(PLAIN), min_size=2, max_size=25),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(programs, st.sampled_from(FORWARD + BACKWARD))
def test_the_planted_op_and_its_line_are_named(
    around: tuple[list[str], list[str]], plant: str
) -> None:
    outcome = run_engine(recipe([*around[0], plant, *around[1]]))
    evidence = outcome.evidence
    assert evidence.trip is not None
    assert evidence.reproduced == "bitwise"
    assert not evidence.leaves
    lines = {birth.site.location.line for birth in evidence.births if birth.site.location}
    assert lines == {line_of(__file__, f"# planted: {plant}")}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(PLAIN), min_size=5, max_size=60))
def test_without_a_plant_nothing_is_said(instructions: list[str]) -> None:
    outcome = run_engine(recipe(instructions))
    assert outcome.evidence.trip is None
    assert all(math.isfinite(loss) for loss in outcome.losses)
