"""Healthy idioms that the rules about silent bugs once took for mistakes. Each of these runs
learns."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose

Step = Callable[..., Any]


def serious(recipe: Recipe, steps: int = 16) -> list[tuple[str, str]]:
    findings: tuple[Finding, ...] = diagnose(recipe, steps)
    return [(one.code, one.title) for one in findings if one.severity != "info"]


def table(samples: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(samples, 6)
    return x, x[:, :3].argmax(1)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*table()), batch_size=16)


def net(*layers: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), *layers, nn.Tanh(), nn.Linear(16, 3))


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def plain_step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def stepping(step: Step, model: nn.Module | None = None) -> Recipe:
    model = model or net()
    return Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=loader(),
    )


# -- the loop's order ------------------------------------------------------------------------------


def zeroes_data(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = loss_of(model, batch)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.data.zero_()  # counts no versions
    loss.backward()
    optimizer.step()
    return loss.detach()


def measures_norm_after(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    loss = plain_step(model, batch, optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
    return loss


def inner_optimizer(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    noise = torch.zeros(16, 6, requires_grad=True)
    inner = torch.optim.Adam([noise], lr=0.01)
    (-F.cross_entropy(model(batch[0] + noise), batch[1])).backward()
    inner.step()
    return plain_step(model, (batch[0] + noise.detach(), batch[1]), optimizer)


def tasks_of_one_graph(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    out = model(batch[0])
    for task in range(4):
        F.cross_entropy(out.roll(task, 1), (batch[1] + task) % 3).backward(retain_graph=task < 3)
    optimizer.step()
    return out.detach().sum()


def clipped_sample_by_sample(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    kept = [torch.zeros_like(p) for p in model.parameters()]
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for one, parameter in zip(kept, model.parameters(), strict=True):
            assert parameter.grad is not None
            one += parameter.grad
    for one, parameter in zip(kept, model.parameters(), strict=True):
        parameter.grad = one / 4
    optimizer.step()
    return loss.detach()


def averages_afterwards(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad /= 4
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize(
    "step",
    [
        zeroes_data,
        measures_norm_after,
        inner_optimizer,
        tasks_of_one_graph,
        clipped_sample_by_sample,
        averages_afterwards,
    ],
    ids=lambda one: one.__name__,
)
def test_loops_of_their_own_order(step: Step) -> None:
    assert serious(stepping(step)) == []


def test_a_schedule_made_in_the_first_step() -> None:
    made: list[Any] = []

    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        if not made:
            made.append(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99))
        loss = plain_step(model, batch, optimizer)
        made[0].step()
        return loss

    assert serious(stepping(step)) == []


# -- modes -----------------------------------------------------------------------------------------


def validates_every_step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    model.train()
    loss = plain_step(model, batch, optimizer)
    model.eval()
    with torch.no_grad():
        model(batch[0])
        model(torch.zeros_like(batch[0]))  # a baseline: the same for all samples
    return loss


def frozen_norm(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    return plain_step(model, batch, optimizer)


def test_validation_and_frozen_norms_inside_the_step() -> None:
    assert serious(stepping(validates_every_step, net(nn.Dropout(0.2)))) == []
    assert serious(stepping(frozen_norm, net(nn.BatchNorm1d(16)))) == []


def test_a_probe_on_a_backbone_in_eval_mode() -> None:
    backbone, head = net(nn.Dropout(0.3)), nn.Linear(3, 3)
    model = nn.Sequential(backbone, head).eval()
    recipe = Recipe(
        model=model,
        loss_fn=loss_of,
        optimizer=torch.optim.Adam(head.parameters(), 1e-2),
        data=loader(),
    )
    assert "ND613" not in [code for code, _ in serious(recipe)]


# -- data ------------------------------------------------------------------------------------------


class OneGraph(torch.utils.data.Dataset):  # type: ignore[type-arg]  # a data set of one item
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return table(64)


def test_the_whole_data_in_one_batch() -> None:
    model = net()

    def squeezed(model, batch):
        return F.cross_entropy(model(batch[0].flatten(0, -2)), batch[1].flatten())

    full = DataLoader(TensorDataset(*table()), batch_size=128)
    for data in (full, DataLoader(OneGraph()), [table()]):
        assert (
            serious(
                Recipe(
                    model=model,
                    loss_fn=squeezed,
                    optimizer=torch.optim.Adam(model.parameters(), 1e-2),
                    data=data,
                )
            )
            == []
        )


class Operator(nn.Module):
    """A branch for the function, a trunk for the places where it is asked: the same for all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branch, self.trunk = nn.Linear(6, 8), nn.Linear(1, 8)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.einsum(
            "bk,bpk->bp", torch.tanh(self.branch(x)), torch.tanh(self.trunk(places))
        )


def test_a_grid_that_all_samples_share() -> None:
    x, _ = table()
    places = torch.linspace(0, 1, 5)[None, :, None].expand(128, 5, 1).clone()
    model = Operator()
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.mse_loss(model(batch[0], batch[1]), batch[2]),
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=DataLoader(TensorDataset(x, places, x[:, :5].sin()), batch_size=16),
    )
    assert serious(recipe) == []


def test_scalars_in_a_batch() -> None:
    model = net()
    data = [(x, y, torch.tensor(0.5)) for x, y in loader()]
    assert (
        serious(
            Recipe(
                model=model,
                loss_fn=loss_of,
                optimizer=torch.optim.Adam(model.parameters(), 1e-2),
                data=data,
            )
        )
        == []
    )


# -- losses ----------------------------------------------------------------------------------------


def hinge_that_is_met(model: nn.Module, batch: Any) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(out, batch[1]) + F.relu(out.abs() - 50).mean()


def guarded_nll(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.nll_loss(torch.log(F.softmax(model(batch[0]), dim=1) + 1e-2), batch[1])


def depth_bins(model: nn.Module, batch: Any) -> torch.Tensor:
    near = F.softplus(model(batch[0])[:, :1])
    depths = near * torch.linspace(0, 1, 16)  # as many bins as samples
    return loss_of(model, batch) + 1e-3 * depths.mean()


@pytest.mark.parametrize(
    "loss_fn", [hinge_that_is_met, guarded_nll, depth_bins], ids=lambda one: one.__name__
)
def test_losses_that_only_look_odd(loss_fn: Step) -> None:
    model = net()
    assert (
        serious(
            Recipe(
                model=model,
                loss_fn=loss_fn,
                optimizer=torch.optim.Adam(model.parameters(), 1e-2),
                data=loader(),
            )
        )
        == []
    )


class NoRate(torch.optim.Optimizer):
    """An optimizer without a learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as users write it
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= 0.05 * parameter.grad


def test_an_optimizer_without_a_learning_rate() -> None:
    model = net()
    assert (
        serious(
            Recipe(
                model=model, loss_fn=loss_of, optimizer=NoRate(model.parameters()), data=loader()
            )
        )
        == []
    )


# -- the run itself --------------------------------------------------------------------------------


def test_a_model_is_copied_and_saved_in_the_middle_of_a_sampled_step(tmp_path: Path) -> None:
    copies: list[nn.Module] = []

    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = plain_step(model, batch, optimizer)
        copies.append(copy.deepcopy(model))
        pickle.dumps(model)
        return loss

    model = net()
    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
        data=loader(),
    )
    assert [one.code for one in diagnose(recipe, 6, sample_every=1)] == []
    assert all(not module._forward_hooks for one in copies[1:] for module in one.modules())


def test_a_net_that_grows() -> None:
    model = net()

    def step(model: nn.Sequential, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = plain_step(model, batch, torch.optim.SGD(model.parameters(), 0.05))
        last = model[-1]
        assert isinstance(last, nn.Linear)
        last.weight.data = torch.cat([last.weight.data, last.weight.data[-1:]])
        last.bias.data = torch.cat([last.bias.data, last.bias.data[-1:] - 1])
        return loss

    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.SGD(model.parameters(), 0.05),
        data=loader(),
    )
    assert all(one.code != "ND709" for one in diagnose(recipe, 6, sample_every=1))
