"""Graphs used twice and tensors overwritten: both ends are named, by errors that the current torch
really raises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from nanodoc.rules.graph.failure_claims import detached_assignment, out_of_place
from tests.helpers import diagnose, marked


def recipe(model: nn.Module, step: Any = None, optimizers: Any = None) -> Recipe:
    torch.manual_seed(0)
    data = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(4)]
    optimizers = optimizers or torch.optim.SGD(model.parameters(), lr=0.01)
    if step is not None:
        return Recipe(model=model, train_step=step, data=data, optimizer=optimizers)
    return Recipe(
        model=model, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), data=data, optimizer=optimizers
    )


def first(model: nn.Module, **more: Any) -> Finding:
    findings = diagnose(recipe(model, **more), steps=3)
    assert findings
    assert len([f for f in findings if f.severity == "critical"]) == 1
    return findings[0]


def blamed(finding: Finding, text: str) -> bool:
    where = finding.culprit.location
    return where is not None and where.line == marked(__file__, text)


def said(finding: Finding, label: str) -> str:
    return str(dict(finding.evidence)[label])


class State(nn.Module):
    """Keeps its recurrent state in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out, self.memory = nn.LSTMCell(4, 5), nn.Linear(5, 1), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x, self.memory)  # the reader
        self.memory = (h, c)  # type: ignore[assignment]  # kept
        return self.out(h)  # type: ignore[no-any-return]


def test_a_state_carried_across_steps() -> None:
    finding = first(State())
    assert finding.name == "backward-twice"
    assert blamed(finding, "kept")
    assert f":{marked(__file__, 'the reader')}:" in said(finding, "read at")
    assert finding.fixes[0].verified is True


class Average(nn.Module):
    """A running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(4, 5), nn.Linear(5, 1)
        self.register_buffer("mean", torch.zeros(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * h.mean(0)  # running
        return self.out(h - self.mean)  # type: ignore[no-any-return]


def test_a_buffer_that_keeps_the_graph() -> None:
    finding = first(Average())
    assert finding.name == "backward-twice"
    assert "buffer mean" in finding.explanation
    assert blamed(finding, "running")


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))  # type: ignore[no-any-return]


def twice(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch[0]), batch[1])
    loss.backward()  # once
    loss.backward()  # again
    optimizer.step()
    return loss


def test_one_loss_differentiated_twice() -> None:
    finding = first(Two(), step=twice)
    assert finding.name == "backward-twice"
    assert blamed(finding, "again")
    assert f":{marked(__file__, 'once')}:" in said(finding, "first call")


def adversary(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    fake = model.a(batch[0])
    critic = F.softplus(model.b(fake)).mean()  # should have been detached
    critic.backward()
    loss = -F.softplus(model.b(fake) + 1).mean()
    loss.backward()
    optimizer.step()
    return loss


def test_two_losses_that_share_a_freed_graph() -> None:
    finding = first(Two(), step=adversary)
    assert finding.name == "backward-twice"
    assert blamed(finding, "should have been detached")


def impatient(model: Any, batch: Any, optimizers: Any, scaler: Any) -> torch.Tensor:
    one, two = optimizers
    hidden = model.a(batch[0])
    loss = F.mse_loss(model.b(hidden), batch[1])
    model.b(hidden.detach()).mean().backward()
    two.step()  # too early
    loss.backward()
    one.step()
    return loss


def test_an_optimizer_that_steps_before_backward() -> None:
    model = Two()
    both = [
        torch.optim.SGD(model.a.parameters(), lr=0.1),
        torch.optim.SGD(model.b.parameters(), lr=0.1),
    ]
    finding = first(model, step=impatient, optimizers=both)
    assert finding.name == "in-place-overwrite"
    assert blamed(finding, "too early")
    assert "optimizer" in finding.title


class Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.exp(self.a(x))  # exp saves its output
        weight += 1e-3  # overwritten
        return self.b(weight)  # type: ignore[no-any-return]


def test_both_ends_of_an_overwrite() -> None:
    finding = first(Overwrites())
    assert finding.name == "in-place-overwrite"
    assert blamed(finding, "overwritten")
    assert f":{marked(__file__, 'exp saves its output')}:" in said(finding, "saved at")
    assert finding.fixes[0].patch == "weight = weight + 1e-3"
    assert finding.fixes[0].verified is True


class WritesToLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.b = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scale.clamp_(0.1, 10)  # in the graph
        return self.b(x * self.scale)  # type: ignore[no-any-return]


def test_a_parameter_written_to() -> None:
    finding = first(WritesToLeaf())
    assert (finding.name, finding.culprit.parameter) == ("in-place-on-leaf", "scale")
    assert blamed(finding, "in the graph")


class WritesToView(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = self.a(x).chunk(2, 1)
        left *= 2  # a view of two
        return self.b(left + right)  # type: ignore[no-any-return]


def test_a_view_written_to() -> None:
    finding = first(WritesToView())
    assert finding.name == "in-place-overwrite"
    assert blamed(finding, "a view of two")


class Scaled(torch.autograd.Function):
    """y = x · w with x broadcast; its backward forgets to sum."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad * w, grad * x  # not summed over the batch


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(1, 4)), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(Scaled.apply(x.clone(), self.w))  # type: ignore[no-untyped-call, no-any-return]


def test_a_gradient_that_is_summed_without_a_word() -> None:
    findings = diagnose(recipe(Custom()), steps=2)
    assert [f.name for f in findings] == ["gradient-shape"]
    assert findings[0].severity == "warning"
    assert blamed(findings[0], "not summed over the batch")
    assert "[6, 4] float32" in findings[0].title
    assert "[1, 4] float32" in findings[0].title


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * grad


class Right(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = checkpoint(self.a, Doubled.apply(self.a(x)), use_reentrant=True)  # type: ignore[no-untyped-call]
        return self.b(h)  # type: ignore[no-any-return]


def test_gradients_that_fit_are_not_reported() -> None:
    assert diagnose(recipe(Right()), steps=2) == ()


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.total = nn.Linear(4, 4), nn.Linear(4, 1), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(x)
        self.total = self.total + h.mean()  # for the log
        return self.b(h)  # type: ignore[no-any-return]


def test_a_sum_that_keeps_every_graph() -> None:
    findings = diagnose(recipe(Growing()), steps=5)
    assert [f.name for f in findings] == ["growing-graph"]
    assert blamed(findings[0], "for the log")


def test_patches_are_plain_rewrites() -> None:
    finding = first(Overwrites())
    span = finding.culprit.location
    assert span is not None
    from dataclasses import replace

    def patched(code: str) -> str | None:
        return out_of_place(replace(span, code=code))

    assert patched("x /= norm") == "x = x / norm"
    assert patched("x **= a + b") == "x = x ** (a + b)"
    assert patched("h.mul_(2)") == "h = h.mul(2)"
    assert patched("x[mask] = 0") is None
    assert patched("x[0] += 1") is None
    assert patched("y = x.relu_()") is None
    assert detached_assignment(replace(span, code="self.h = h")) == "self.h = h.detach()"
    assert detached_assignment(replace(span, code="self.h = f(h)")) is None


@pytest.mark.parametrize("build", [State, Average, Overwrites, WritesToLeaf])
def test_nothing_is_proposed_that_only_silences(build: Any) -> None:
    for fix in first(build()).fixes:
        assert "retain_graph" not in f"{fix.title} {fix.patch}"
