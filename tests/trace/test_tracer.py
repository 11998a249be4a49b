"""What the tracer works under: autocast, checkpointing, tied weights, repeated modules, compiled
parts, custom functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, line_of


def first(model: nn.Module, x: torch.Tensor, **options: Any) -> Finding:
    recipe = Recipe(
        model=model, loss_fn=lambda model, batch: model(batch).float().mean(), data=[x], **options
    )
    return diagnose(recipe)[0]


class Root(nn.Module):
    def __init__(self, offset: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = self.linear(x).pow(2)
        return torch.sqrt(energy + self.offset)  # root


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.before, self.block, self.reentrant = nn.Linear(4, 4, bias=False), Root(), reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.block, self.before(x), use_reentrant=self.reentrant)  # type: ignore[no-any-return]


ZERO = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 0.0]])


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_birth_inside_activation_checkpointing(reentrant: bool) -> None:
    finding = first(Checkpointed(reentrant), ZERO)
    assert finding.name == "infinite-gradient"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# root")
    assert finding.culprit.module == "block"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_birth_under_autocast(dtype: torch.dtype) -> None:
    model = Root()
    finding = diagnose(
        Recipe(model=model, loss_fn=lambda m, b: m(b).float().mean(), data=[ZERO]), amp_dtype=dtype
    )[0]
    assert finding.name == "infinite-gradient"
    assert finding.culprit.samples == (1,)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight
        with torch.no_grad():
            self.embed.weight[3] = 0.0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embed(ids)
        norm = h.pow(2).sum(-1, keepdim=True).sqrt()  # tied norm
        return self.out(h + norm)


def test_tied_weights_do_not_confuse_the_slice() -> None:
    finding = first(Tied(), torch.tensor([0, 3, 5]))
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# tied norm")
    assert finding.culprit.samples == (1,)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = Root()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        once = self.shared(x + 1.0)
        return once + self.shared(x)  # only the second call meets a zero


def test_a_module_called_twice() -> None:
    finding = first(Twice(), ZERO)
    assert finding.culprit.module == "shared"
    assert finding.culprit.samples == (1,)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 2 / (x * 0)  # custom backward


class UsesDoubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(self.linear(x))  # type: ignore[no-any-return]


def test_a_custom_functions_own_backward_line_is_named() -> None:
    finding = first(UsesDoubled(), torch.ones(2, 4))
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# custom backward")


class PartlyCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Root()
        self.fast = torch.compile(self.block, backend="eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fast(x)  # type: ignore[no-any-return]


# dynamo's own
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
)
def test_compiled_parts_are_traced_eagerly_and_unharmed() -> None:
    model = PartlyCompiled()
    healthy = torch.ones(2, 4)
    expected = model(healthy)
    counter = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finding = first(model, ZERO)
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# root")
    assert torch.equal(model(healthy), expected)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == counter


class Columns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        é = self.linear(x).pow(2)
        return F.relu(é) + torch.sqrt(é)  # é: a letter of two bytes


def test_columns_count_characters() -> None:
    location = first(Columns(), ZERO).culprit.location
    assert location is not None
    assert location.expression == "torch.sqrt(é)"


class CausalMask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mask", torch.triu(torch.full((4, 4), float("-inf")), 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = F.softmax(x @ x.T + self.mask, -1)
        return torch.log(weights @ torch.relu(self.linear(x)) * 0.0)  # log of it all


def test_a_causal_mask_upstream_is_not_blamed() -> None:
    finding = first(CausalMask(), torch.randn(4, 4))
    assert finding.name == "log-of-zero"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# log of it all")


def test_hooks_are_gone_after_an_exception() -> None:
    hooks = torch.nn.modules.module
    before = (
        len(hooks._global_forward_hooks),
        len(hooks._global_forward_pre_hooks),
        torch.Tensor.backward,
    )

    def explode(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ValueError("on purpose")

    assert diagnose(Recipe(model=Root(), loss_fn=explode, data=[ZERO]))[0].name == "user-exception"
    assert (
        len(hooks._global_forward_hooks),
        len(hooks._global_forward_pre_hooks),
        torch.Tensor.backward,
    ) == before
