"""Random programs of 5 to 60 ops with one planted cut: the cut reported is the planted one, with
exactly its orphans."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nanodoc import Recipe
from nanodoc.facts.graph import GraphFacts
from tests.helpers import run_engine

WIDTH = 4
PLAIN = [
    "tanh",
    "scale",
    "weigh",
    "transpose",
    "slice",
    "reshape",
    "in place",
    "row",
    "fork",
    "join",
    "chunk",
    "log",
    "target",
    "mask",
]
CUTS = {
    "detach": "x = x.detach() * 1.0  # planted",
    "data": "x = x.data + 0.0  # planted",
    "rebuilt": "x = torch.as_tensor([v for row in x for v in row]).view(WIDTH, WIDTH)",
    "item": "x = torch.tensor([[v.item() for v in row] for row in x])",
    "item, changed": "k = x.sum().item() / 3",
    "tolist": "x = torch.tensor(x.tolist())",
    "numpy": "x = torch.from_numpy(np.tanh(x.detach().numpy()))",
    "compare": "x = (x > 0.01).float()",
    "integer": "x = (x * 50).long().float() / 50",
    "argmax": "x = torch.nn.functional.one_hot(torch.argmax(x, 1), WIDTH).float()",
    "no grad": "with torch.no_grad():  # planted",
    "off": "with torch.set_grad_enabled(False):  # planted",
    "zeros": "with torch.no_grad():  # into zeros",
    "data write": "out.data.copy_(x)",
    "function": "return None",
}


class Forgetful(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> None:  # type: ignore[override]
        return None


class Program(nn.Module):
    """Interprets instructions on a square matrix; every "weigh" uses a parameter of its own."""

    def __init__(self, instructions: list[str]) -> None:
        super().__init__()
        self.instructions = instructions
        self.weights = nn.ParameterList(
            torch.eye(WIDTH) * (1 + 0.01 * i) + 0.02 for i, _ in enumerate([*instructions, ""])
        )
        self.seen = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, kept = x @ self.weights[-1], []
        for i, instruction in enumerate(self.instructions):
            if instruction == "tanh":
                x = torch.tanh(x)
            elif instruction == "scale":
                x = x * 0.9 + 0.05
            elif instruction == "weigh":
                x = x @ self.weights[i]
            elif instruction == "transpose":
                x = x.t().contiguous()
            elif instruction == "slice":
                x = torch.cat([x[:1], x[1:] * 1.01])
            elif instruction == "reshape":
                x = x.reshape(-1).view(WIDTH, WIDTH)
            elif instruction == "in place":
                x = x.clone().add_(0.125)
            elif instruction == "row":
                out = torch.zeros(WIDTH, WIDTH)
                out[0], out[1:] = x[0], x[1:] * 2
                x = out / 2
            elif instruction == "fork":
                kept.append(x * 0.5)
            elif instruction == "join":
                x = x + kept[-1] if kept else x + 0.01
            elif instruction == "chunk":
                a, b = x.chunk(2, 1)
                x = torch.cat([b, a], 1)
            elif instruction == "log":
                self.seen = x.mean().item() * 0.3 + float(x[0, 0].detach())
            elif instruction == "target":
                x = x + 0.1 * (x - x.detach())
            elif instruction == "mask":
                x = x * (x > 0).float() + x
            else:
                kept = []  # nothing carries gradient around the cut
                x = self.cut(instruction, x)
        return x.square().mean()

    def cut(self, instruction: str, x: torch.Tensor) -> torch.Tensor:
        if instruction == "detach":
            x = x.detach() * 1.0  # planted
        elif instruction == "data":
            x = x.data + 0.0  # planted
        elif instruction == "rebuilt":
            x = torch.as_tensor([v for row in x for v in row]).view(WIDTH, WIDTH)
        elif instruction == "item":
            x = torch.tensor([[v.item() for v in row] for row in x])
        elif instruction == "item, changed":
            k = x.sum().item() / 3
            x = torch.ones(WIDTH, WIDTH) * k
        elif instruction == "tolist":
            x = torch.tensor(x.tolist())
        elif instruction == "numpy":
            x = torch.from_numpy(np.tanh(x.detach().numpy()))
        elif instruction == "compare":
            x = (x > 0.01).float()
        elif instruction == "integer":
            x = (x * 50).long().float() / 50
        elif instruction == "argmax":
            x = torch.nn.functional.one_hot(torch.argmax(x, 1), WIDTH).float()
        elif instruction == "no grad":
            with torch.no_grad():  # planted
                x = x * 1.5
        elif instruction == "off":
            with torch.set_grad_enabled(False):  # planted
                x = x + 1.5
        elif instruction == "zeros":
            out = torch.zeros(WIDTH, WIDTH)
            with torch.no_grad():  # into zeros
                out[0], out[1:] = x[0], x[1:]
            x = out
        elif instruction == "data write":
            out = torch.zeros(WIDTH, WIDTH)
            out.data.copy_(x)
            x = out
        elif instruction == "function":
            x = Forgetful.apply(x)  # type: ignore[no-untyped-call]
        return x


def examined(instructions: list[str]) -> tuple[Program, GraphFacts]:
    torch.manual_seed(0)
    model = Program(instructions)
    used = [
        p
        for p, name in zip(model.weights, [*instructions, "weigh"], strict=True)
        if name == "weigh"
    ]
    extra = nn.Parameter(torch.ones(()))  # keeps the loss differentiable when all else is cut off
    model.extra = extra
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b[0]) * m.extra,
        data=[(torch.randn(WIDTH, WIDTH),)],
        optimizer=torch.optim.SGD([*used, extra], lr=0.0),
    )
    for position, name in enumerate([*instructions, "weigh"]):
        model.weights[position].requires_grad_(name == "weigh")
    evidence = run_engine(recipe, leak_check=False).evidence
    assert evidence.graph is not None, evidence.failure
    return model, evidence.graph


def planted(text: str) -> int:
    """The line of the one statement in `cut` or `Forgetful` that starts with `text`."""
    numbers = []
    for source in (Program.cut, Forgetful):
        lines, first = inspect.getsourcelines(source)
        numbers += [first + i for i, line in enumerate(lines) if line.strip().startswith(text)]
    (number,) = numbers
    return number


parts = st.lists(st.sampled_from(PLAIN), min_size=2, max_size=29)


@pytest.mark.slow
# torch warns once per process
@pytest.mark.filterwarnings("ignore:.*to a scalar may lead.*:UserWarning")
@given(before=parts, after=parts, cut=st.sampled_from(sorted(CUTS)))
@settings(max_examples=60, deadline=None)
def test_the_planted_cut_is_found(before: list[str], after: list[str], cut: str) -> None:
    _, graph = examined([*before, cut, *after])
    orphans = {f"weights.{i}" for i, name in enumerate(before) if name == "weigh"} | {
        f"weights.{len(before) + 1 + len(after)}"
    }
    assert {p.name for p in graph.parameters if p.state in ("cut", "lost")} == orphans
    assert len(graph.cuts) == 1
    found = graph.cuts[0]
    assert set(found.orphans) == orphans
    where = found.region or found.returned_at or found.op.location
    assert where is not None
    assert where.line == planted(CUTS[cut])


@given(instructions=st.lists(st.sampled_from(PLAIN), min_size=5, max_size=60))
@settings(max_examples=30, deadline=None)
def test_deliberate_cuts_alone_are_no_cuts(instructions: list[str]) -> None:
    _, graph = examined(instructions)
    assert graph.cuts == graph.dead_terms == ()
    assert {p.state for p in graph.parameters} <= {"gradient", "frozen"}
