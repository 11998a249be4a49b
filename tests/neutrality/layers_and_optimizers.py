"""Trainings of unusual layers and with unusual optimizers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.neutrality.recipes import Net, Recipe, loss_of, of, ordinary_step, recipe, stepping

# -- layers ----------------------------------------------------------------------------------------


@recipe
def global_hooks() -> Recipe:
    calls = {"n": 0}

    def hook(module: Any, given: Any, out: Any) -> None:
        calls["n"] += 1

    nn.modules.module.register_module_forward_hook(hook)
    return of(Net(), counted=lambda: calls["n"])


@recipe
def norms_of_old() -> Recipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        first = nn.utils.weight_norm(nn.Linear(8, 8))  # type: ignore[no-untyped-call]
    return of(nn.Sequential(first, nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 3)))


@recipe
def lazy_layers() -> Recipe:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(3))
    model(torch.zeros(1, 8))
    return of(model)


@recipe
def scripted() -> Recipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return of(
            torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 3)))
        )


@recipe
def traced() -> Recipe:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        return of(torch.jit.trace(model, torch.zeros(2, 8)))  # type: ignore[no-untyped-call]


@recipe
def channels_last() -> Recipe:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1),
        nn.Flatten(),
        nn.Linear(32, 3),
    ).to(memory_format=torch.channels_last)

    def loss(model: Any, batch: Any) -> Any:
        images = batch[0].view(-1, 1, 2, 4).contiguous(memory_format=torch.channels_last)
        return F.cross_entropy(model(images), batch[1])

    return of(model, loss_fn=loss)


@recipe
def a_carried_state() -> Recipe:
    class Carrying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.GRUCell(8, 8), nn.Linear(8, 3)
            self.state: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> Any:
            self.state = self.cell(x, None if self.state is None else self.state.detach())
            return self.out(self.state)

    return of(Carrying())


@recipe
def random_depth() -> Recipe:
    class Skipping(Net):
        def forward(self, x: torch.Tensor) -> Any:
            hidden = torch.relu(self.first(x))
            return self.last(self.norm(hidden) if torch.rand(()) < 0.5 else hidden)

    return of(Skipping())


@recipe
def views_as_parameters() -> Recipe:
    flat = torch.randn(8 * 3 + 3) * 0.1
    model = nn.Linear(8, 3)
    model.weight = nn.Parameter(flat[:24].view(3, 8))
    model.bias = nn.Parameter(flat[24:])
    return of(model)


@recipe
def bfloat16_parameters() -> Recipe:
    return of(Net().bfloat16(), loss_fn=lambda m, b: F.cross_entropy(m(b[0].bfloat16()), b[1]))


@recipe
def thousands_of_small_tensors() -> Recipe:
    return of(nn.Sequential(*(nn.Linear(8, 8) for _ in range(400)), nn.Linear(8, 3)))


# -- optimizers ------------------------------------------------------------------------------------


@recipe
def a_fused_optimizer() -> Recipe:
    model = Net()
    return of(model, optimizer=torch.optim.Adam(model.parameters(), 1e-2, fused=True))


@recipe
def a_foreach_optimizer() -> Recipe:
    model = Net()
    return of(model, optimizer=torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=True))


@recipe
def sums_of_squares() -> Recipe:
    model = Net()
    return of(model, optimizer=torch.optim.Adagrad(model.parameters(), 0.1))


@recipe
def a_rate_in_a_tensor() -> Recipe:
    model = Net()
    return of(model, optimizer=torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2)))


@recipe
def memory_of_gradients() -> Recipe:
    model = Net(dropout=0.0)

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        return optimizer.step(closure)

    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    return stepping(step, model, optimizer=optimizer)


@recipe
def gradients_of_zero() -> Recipe:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    return stepping(step, Net())


@recipe
def sparse_gradients() -> Recipe:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(30, 3, sparse=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.table(x.abs().mul(5).long() % 30).mean(1)

    model = Bag()
    return of(model, optimizer=torch.optim.SparseAdam(list(model.parameters()), 1e-2))


@recipe
def a_layer_that_thaws() -> Recipe:
    model, steps = Net(), {"n": 0}
    model.first.requires_grad_(False)

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        steps["n"] += 1
        if steps["n"] == 5:
            model.first.requires_grad_(True)
        return ordinary_step(model, batch, optimizer)

    return stepping(step, model, counted=lambda: steps["n"])
