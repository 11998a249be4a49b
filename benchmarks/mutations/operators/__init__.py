"""The operators, by the kind of mistake that they put in."""

from benchmarks.mutations.operators import (  # each registers its operators
    data,
    graph,
    loop,
    loss,
    model,
    numbers,
    shape,
)
from benchmarks.mutations.operators.base import OPERATORS, Operator

KINDS = ("data", "shape", "loss", "graph", "loop", "model", "numbers")

__all__ = [
    "KINDS",
    "OPERATORS",
    "Operator",
    "data",
    "graph",
    "loop",
    "loss",
    "model",
    "numbers",
    "shape",
]
