"""The order of a loop's calls: what is wrong is named with its line, and what only looks odd is
left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, marked

Step = Callable[..., Any]


def run(
    step: Step, *, steps: int = 12, optimizer: Callable[..., Any] | None = None
) -> tuple[Finding, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(8, 16, 6), torch.randint(0, 3, (8, 16))
    made = (optimizer or torch.optim.SGD)(model.parameters(), lr=0.01)
    return diagnose(
        Recipe(model=model, train_step=step, optimizer=made, data=list(zip(x, y, strict=True))),
        steps,
    )


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def never_clears(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()  # steps on the sum
    return loss


class AccumulatesAndNeverClears:
    count = 0

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        (loss / 3).backward()
        self.count += 1
        if self.count % 3 == 0:
            optimizer.step()
        return loss


def test_gradients_that_are_never_cleared_are_named_with_their_step() -> None:
    first = run(never_clears)[0]
    assert (first.code, first.severity) == ("ND608", "critical")
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "steps on the sum")
    assert dict(first.evidence)["on"] == "11 of 12 steps watched"


def test_accumulation_that_never_clears_is_named_too() -> None:
    assert run(AccumulatesAndNeverClears().step, steps=24)[0].code == "ND608"


def clears_to_zero(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = loss_of(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def clears_by_hand(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.zero_()
    return loss


def clears_afterwards(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Accumulates:
    """Clears after each optimizer step, and divides."""

    count = 0

    def step(self, model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        (loss / 4).backward()
        self.count += 1
        if self.count % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss


def two_losses(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    """Two terms of one loss, differentiated one after the other."""
    optimizer.zero_grad()
    out = model(batch[0])
    first, second = F.cross_entropy(out, batch[1]), 1e-3 * out.pow(2).mean()
    first.backward(retain_graph=True)
    second.backward()
    optimizer.step()
    return first


@pytest.mark.parametrize(
    "step",
    [clears_to_zero, clears_by_hand, clears_afterwards, two_losses],
    ids=lambda one: one.__name__,
)
def test_loops_in_order_are_left_alone(step: Step) -> None:
    assert run(step) == ()
    assert run(step, optimizer=lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)) == ()


def test_accumulation_that_clears_is_left_alone() -> None:
    assert run(Accumulates().step, steps=40) == ()


def test_a_generator_step_that_leaves_gradients_in_the_critic_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"made": nn.Linear(4, 2), "critic": nn.Linear(2, 1)})
    one, other = (
        torch.optim.Adam(model["made"].parameters()),
        torch.optim.Adam(model["critic"].parameters()),
    )

    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        made = model["made"](torch.randn(8, 4))
        other.zero_grad(set_to_none=False)
        F.softplus(model["critic"](made.detach()) - model["critic"](batch)).mean().backward()
        other.step()
        one.zero_grad(set_to_none=False)
        loss = F.softplus(-model["critic"](made)).mean()
        loss.backward()  # leaves gradients in the critic, which its next zero_grad() clears
        one.step()
        return loss

    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=[one, other],
        data=[torch.randn(8, 2) for _ in range(4)],
    )
    assert [f.code for f in diagnose(recipe, 16) if f.severity != "info"] == []


def discards(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.zero_grad()  # cleared early
    optimizer.step()
    return loss


def discards_zeros(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return loss


@pytest.mark.parametrize("step", [discards, discards_zeros], ids=lambda one: one.__name__)
def test_gradients_cleared_before_they_are_used(step: Step) -> None:
    assert run(step)[0].code == "ND622"


def test_the_line_is_that_of_the_clearing() -> None:
    where = run(discards)[0].culprit.location
    assert where is not None
    assert where.line == marked(__file__, "cleared early")


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shared = torch.tanh(self.body(x))
        return self.first(shared), self.second(shared)


@pytest.mark.parametrize("between", [True, False])
def test_the_gradients_of_one_of_two_tasks_are_cleared(between: bool) -> None:
    torch.manual_seed(0)
    model = TwoTasks()

    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        first, second = model(batch[0])
        one = F.cross_entropy(first, batch[1])
        one.backward(retain_graph=True)
        if between:
            optimizer.zero_grad()  # the first task's
        other = F.cross_entropy(second, batch[1])
        other.backward()
        optimizer.step()
        return one + other

    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=[(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(8)],
    )
    found = [f for f in diagnose(recipe, 16) if f.severity != "info"]
    assert [f.code for f in found] == (["ND622"] if between else [])
    if found:
        assert (
            found[0].title == "all gradients of first.weight and 1 more are cleared before the step"
        )
        assert found[0].culprit.location is not None
        assert found[0].culprit.location.line == marked(__file__, "the first task's")


MICRO = 4


def drops(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    x, y = batch
    for part, labels in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
        optimizer.zero_grad()  # too often
        loss = loss_of(model, (part, labels)) / MICRO
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def writes_gradients(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    """Gradients of each sample, clipped by themselves, as in private training."""
    x, y = batch
    sums = [torch.zeros_like(p) for p in model.parameters()]
    for part, labels in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
        optimizer.zero_grad()
        loss = loss_of(model, (part, labels))
        loss.backward()
        for total, p in zip(sums, model.parameters(), strict=True):
            assert p.grad is not None
            total += p.grad.clamp(-1, 1)
    for total, p in zip(sums, model.parameters(), strict=True):
        p.grad = total
    optimizer.step()
    return loss


def test_the_gradients_of_all_but_the_last_micro_batch_are_cleared() -> None:
    found = run(drops)[0]
    assert (found.code, found.severity) == ("ND622", "warning")
    assert f"all but the last of {MICRO} backward passes" in found.title
    assert found.culprit.location is not None
    assert found.culprit.location.line == marked(__file__, "too often")


def test_gradients_written_by_hand_may_hold_those_that_were_cleared() -> None:
    assert [f.code for f in run(writes_gradients)] == []


def clips_late(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # too late
    return loss


def clips_values_late(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    return loss


def test_clipping_after_the_step() -> None:
    first = run(clips_late)[0]
    assert first.code == "ND624"
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "too late")
    assert run(clips_values_late)[0].code == "ND624"


def sums(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    optimizer.step()
    return loss


def averages(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
    optimizer.step()
    return loss


def test_losses_summed_over_micro_batches() -> None:
    first = run(sums)[0]
    assert (first.code, first.severity) == ("ND623", "warning")
    assert "4 micro-batches" in first.title
    assert run(averages) == ()


def fresh(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return clears_to_zero(model, batch, optimizer)


def fresh_without_state(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    return clears_to_zero(model, batch, torch.optim.SGD(model.parameters(), lr=1e-3))


def test_an_optimizer_made_anew_for_every_step() -> None:
    assert run(fresh)[0].code == "ND626"
    assert "ND626" not in [one.code for one in run(fresh_without_state)]


def no_step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    return loss


def by_hand(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.01 * parameter.grad
    return loss


def test_no_optimizer_steps() -> None:
    assert run(no_step)[0].code == "ND628"
    assert run(by_hand) == ()


def no_backward(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    optimizer.step()  # without gradients
    return loss


def neither(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])  # and that is all


def gradients_by_hand(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = grad
    optimizer.step()
    return loss


def evolves(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    """A random step, kept where it helps."""
    with torch.no_grad():
        before = [p.clone() for p in model.parameters()]
        loss = loss_of(model, batch)
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        if loss_of(model, batch) > loss:
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.copy_(old)
    return loss


def test_nothing_is_differentiated() -> None:
    for step, line in ((no_backward, "without gradients"), (neither, "and that is all")):
        first = run(step)[0]
        assert (first.code, first.severity) == ("ND640", "critical")
        assert first.culprit.location is not None
        assert first.culprit.location.line == marked(__file__, line)
    assert "ND640" not in {finding.code for finding in run(gradients_by_hand)}
    assert "ND640" not in {finding.code for finding in run(evolves)}


def test_a_schedule_that_steps_first() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        schedule.step()  # before the optimizer
        loss.backward()
        optimizer.step()
        return loss

    data = [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(6)]
    with pytest.warns(UserWarning, match="lr_scheduler"):
        findings = diagnose(Recipe(model=model, train_step=step, optimizer=optimizer, data=data), 6)
    assert [one.code for one in findings] == ["ND614"]
    assert findings[0].culprit.location is not None
    assert findings[0].culprit.location.line == marked(__file__, "before the optimizer")
    assert any(label == "torch warned" for label, _ in findings[0].evidence)


def clips_nothing(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # nothing yet
    loss.backward()
    optimizer.step()
    return loss


def test_a_clip_before_the_backward() -> None:
    first = run(clips_nothing)[0]
    assert (first.code, first.severity) == ("ND624", "critical")
    assert "before the backward" in first.title
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "nothing yet")
