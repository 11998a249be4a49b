"""What the rules say of a cut, by its kind."""

from __future__ import annotations

from collections.abc import Callable

from nanodoc.facts.graph import CutFacts

Text = Callable[[CutFacts], str]

_REGIONS = {
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
    "set_grad_enabled": "torch.set_grad_enabled(False)",
    "checkpoint": "a reentrant checkpoint",
    "": "a region with gradients off",
}


def _op(cut: CutFacts) -> str:
    return cut.op.short


def _region(cut: CutFacts) -> str:
    return _REGIONS.get(cut.region_kind, cut.region_kind)


def _region_why(cut: CutFacts) -> str:
    if cut.region_kind == "checkpoint":
        return (
            "A reentrant checkpoint runs its function with gradients off and records it only if "
            "one of its inputs requires gradient; none does here."
        )
    return (
        f"Everything inside {_region(cut)} is computed without a graph, so no gradient flows back "
        "from its results."
    )


TITLES: dict[str, Text] = {
    "detach": lambda cut: "detach()",
    "data": lambda cut: ".data",
    "rewrapped": lambda cut: "wrapping the loss in a new tensor",
    "item": lambda cut: (
        f"{'tolist()' if 'tolist' in cut.op.op else 'turning a tensor into a Python number'}"
    ),
    "numpy": lambda cut: "a detour through NumPy",
    "rebuilt": lambda cut: f"rebuilding tensors with {cut.op.op}",
    "no-derivative": lambda cut: f"{_op(cut)} has no derivative and",
    "integer": lambda cut: "a cast to integers",
    "comparison": lambda cut: f"the comparison {_op(cut)} has no derivative and",
    "region": _region,
    "frozen-midway": lambda cut: "requires_grad switched off inside the step",
    "in-place": lambda cut: "an in-place write that autograd does not see",
    "flat": lambda cut: f"{_op(cut)} has a derivative of zero everywhere and",
    "custom-function": lambda cut: "a custom autograd function that returns None",
}

EXPLANATIONS: dict[str, Text] = {
    "detach": lambda cut: (
        "detach() returns the same values without their graph; on the way to the loss, it ends "
        "the gradient's path."
    ),
    "data": lambda cut: (
        ".data returns the same values without their graph; on the way to the loss, it ends the "
        "gradient's path."
    ),
    "rewrapped": lambda cut: (
        "A new tensor that requires gradient is a leaf: backward() starts and ends there."
    ),
    "item": lambda cut: "A Python number carries no graph; a tensor made from it starts a new one.",
    "numpy": lambda cut: "A NumPy array carries no graph; a tensor made from it starts a new one.",
    "rebuilt": lambda cut: (
        f"{cut.op.op} copies the values of its input tensors into a new tensor, without their "
        "graphs."
    ),
    "no-derivative": lambda cut: (
        f"The result of {_op(cut)} does not change smoothly with its input, so autograd stops "
        "there."
    ),
    "integer": lambda cut: (
        "An integer tensor carries no gradient; casting it back to floating point does not bring "
        "it back."
    ),
    "comparison": lambda cut: (
        "A comparison gives booleans, which carry no gradient; casting them to floating point "
        "does not bring it back."
    ),
    "region": _region_why,
    "frozen-midway": lambda cut: (
        "The parameter was trainable when the step began; this line froze it before it was used."
    ),
    "in-place": lambda cut: (
        "The values are written through an alias that autograd does not follow, so the tensor "
        "has no graph when it is read later."
    ),
    "flat": lambda cut: (
        "Its output is constant between jumps: gradient flows through it and is exactly zero."
    ),
    "custom-function": lambda cut: (
        "Its backward returns None for an input that needs a gradient, which tells autograd that "
        "there is none."
    ),
}
