"""Trainings that do unusual things, each in its own way: what watches them must change nothing."""

from __future__ import annotations

import collections
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.neutrality import ledger

Recipe = dict[str, Any]
RECIPES: dict[str, Callable[[], Recipe]] = {}
STEPS = 12


def recipe(made: Callable[[], Recipe]) -> Callable[[], Recipe]:
    RECIPES[made.__name__] = made
    return made


def rows(count: int = 48, width: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(count, width, generator=generator),
        torch.randint(0, 3, (count,), generator=generator),
    )


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*rows()), batch_size=8, shuffle=True, **options)


def loss_of(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


class Net(nn.Module):
    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.last = nn.Dropout(dropout), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))


def of(model: nn.Module, **more: Any) -> Recipe:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {"model": model, "loss_fn": loss_of, "data": loader(), "optimizer": optimizer, **more}


def stepping(step: Callable[[Any, Any, Any], Any], model: nn.Module, **more: Any) -> Recipe:
    made = of(model, train_step=step, **more)
    del made["loss_fn"]
    return made


def ordinary_step(model: Any, batch: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


@recipe
def plain() -> Recipe:
    return of(Net())


@recipe
def hooks_that_change_values() -> Recipe:
    model, counts = Net(), collections.Counter[str]()

    def counted(name: str, value: Any) -> Any:
        counts[name] += 1
        return value

    model.first.register_forward_hook(lambda m, i, o: counted("forward", o * 1.01))
    model.first.register_forward_pre_hook(lambda m, i: counted("before", (i[0] * 0.99,)))
    model.last.weight.register_hook(lambda g: counted("gradient", g + 0.001))
    return of(model, counted=lambda: dict(counts))


@recipe
def parametrized() -> Recipe:
    from torch.nn.utils import parametrizations

    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(8, 8)),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
        parametrizations.orthogonal(nn.Linear(8, 8)),
        nn.Linear(8, 3),
    )
    return of(model)


@recipe
def tied() -> Recipe:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.out = nn.Linear(8, 20, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.embed(x))

    ids = torch.arange(40) % 20
    data = DataLoader(TensorDataset(ids), 8, shuffle=True)
    return of(Tied(), data=data, loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[0]))


@recipe
def custom_function() -> Recipe:
    calls = collections.Counter[str]()

    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            calls["forward"] += 1
            ctx.save_for_backward(x)
            return x.sign()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            calls["backward"] += 1
            return gradients[0] * (ctx.saved_tensors[0].abs() < 1)

    class Signed(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return self.last(Sign.apply(self.norm(self.first(x))))

    return of(Signed(), counted=lambda: dict(calls))


@recipe
def gradient_penalty() -> Recipe:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        x = batch[0].requires_grad_(True)
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, batch[1]) + (gradient.norm(dim=1) - 1).pow(2).mean()

    return of(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), loss_fn=loss)


@recipe
def two_players() -> Recipe:
    makes, judges = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.ModuleDict({"makes": makes, "judges": judges})
    first = torch.optim.Adam(makes.parameters(), lr=1e-3)
    second = torch.optim.Adam(judges.parameters(), lr=1e-3)

    def step(model: Any, batch: Any, optimizers: Any) -> Any:
        noise = torch.randn(8, 4)
        second.zero_grad()
        (
            F.softplus(judges(makes(noise).detach())) + F.softplus(-judges(batch[0]))
        ).mean().backward()
        second.step()
        first.zero_grad()
        loss = F.softplus(-judges(makes(noise))).mean()
        loss.backward()
        first.step()
        return loss

    return stepping(step, model, optimizer=[first, second])


@recipe
def closures() -> Recipe:
    model = Net(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return stepping(step, model, optimizer=optimizer)


@recipe
def averaged_weights() -> Recipe:
    model = Net()
    average = copy.deepcopy(model)

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        loss = ordinary_step(model, batch, optimizer)
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.1)
        return loss

    counted = lambda: [p for p in average.parameters()]  # noqa: E731, C416 - read when it is noted
    return stepping(step, model, counted=counted)


@recipe
def state_in_a_closure() -> Recipe:
    model, state = Net(), {"seen": 0, "mean": torch.zeros(8)}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        state["seen"] += 1
        state["mean"] = 0.9 * state["mean"] + 0.1 * batch[0].mean(0)
        return F.cross_entropy(model(batch[0] - state["mean"]), batch[1])

    return of(model, loss_fn=loss, counted=lambda: dict(state))


@recipe
def batches_that_are_written_to() -> Recipe:
    x, y = rows(8)
    kept = {"x": x.clone(), "y": y, "seen": []}

    def loss(model: Any, batch: Any) -> torch.Tensor:
        batch["x"].mul_(0.9)
        batch["seen"].append(float(batch["x"].sum()))
        return F.cross_entropy(model(batch["x"]), batch["y"])

    return of(Net(), data=[kept], loss_fn=loss, counted=lambda: [kept["x"], *kept["seen"]])


@recipe
def random_of_every_kind() -> Recipe:
    own = torch.Generator().manual_seed(3)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        noise = torch.randn(batch[0].shape, generator=own) + random.random()
        return F.cross_entropy(model(batch[0] + 0.1 * noise + np.random.rand()), batch[1])

    return of(Net(), loss_fn=loss, counted=own.get_state)


@recipe
def a_stream() -> Recipe:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield torch.randn(8), random.randrange(3)

    return of(Net(), data=DataLoader(Stream(), batch_size=8))


@recipe
def samples_that_count() -> Recipe:
    class Counting(Dataset[Any]):
        drawn = 0

        def __len__(self) -> int:
            return 48

        def __getitem__(self, index: int) -> Any:
            self.drawn += 1
            return rows()[0][index] + torch.randn(8), rows()[1][index]

    data = Counting()
    return of(Net(), data=DataLoader(data, 8, shuffle=True), counted=lambda: data.drawn)


@recipe
def named_batches() -> Recipe:
    Pair = collections.namedtuple("Pair", "x y")
    pairs = [Pair(*(part[i : i + 8] for part in rows())) for i in range(0, 48, 8)]
    return of(Net(), data=pairs, loss_fn=lambda m, b: F.cross_entropy(m(b.x), b.y))


@recipe
def mixed_precision() -> Recipe:
    return of(Net(), amp={"dtype": "bfloat16"})


@recipe
def accumulated_and_clipped() -> Recipe:
    return of(Net(), accumulate=2, clip_grad_norm=0.5)


@recipe
def modes_that_change() -> Recipe:
    model, turns = Net(), collections.Counter[str]()

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        turns["steps"] += 1
        model.train(turns["steps"] % 2 == 1)
        optimizer.zero_grad(set_to_none=turns["steps"] % 2 == 0)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            turns["right"] += int((model(batch[0]).argmax(1) == batch[1]).sum())
        return loss

    return stepping(step, model, counted=lambda: dict(turns))


@recipe
def layers_that_are_added() -> Recipe:
    model = nn.Sequential(nn.Linear(8, 8))
    model.append(nn.Linear(8, 3))
    steps = collections.Counter[str]()

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        steps["done"] += 1
        if steps["done"] == 3:
            model.insert(1, nn.Linear(8, 8))
            optimizer.add_param_group({"params": list(model[1].parameters())})
        return ordinary_step(model, batch, optimizer)

    return stepping(step, model, counted=lambda: dict(steps))


@recipe
def checkpointed() -> Recipe:
    from torch.utils.checkpoint import checkpoint

    class Saving(Net):
        def forward(self, x: torch.Tensor) -> Any:
            hidden = checkpoint(lambda h: torch.relu(self.first(h)), x, use_reentrant=False)
            return self.last(self.dropout(hidden))

    return of(Saving())


@recipe
def frozen_part() -> Recipe:
    model = Net()
    model.first.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return of(model, optimizer=optimizer)


@recipe
def a_schedule() -> Recipe:
    made = of(Net())
    schedule = torch.optim.lr_scheduler.OneCycleLR(made["optimizer"], 0.1, total_steps=100)
    return {**made, "scheduler": schedule, "scheduler_interval": "step"}


@recipe
def attributes_of_the_model() -> Recipe:
    class Counting(Net):
        seen = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.seen += len(x)
            self.last_input = x.detach()
            return super().forward(x)

    model = Counting()
    return of(model, counted=lambda: [model.seen, getattr(model, "last_input", None)])


@recipe
def complex_and_double() -> Recipe:
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.ones(5, dtype=torch.complex64))
            self.out = nn.Linear(8, 3).double()

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8).double())

    return of(Waves())


def watched(name: str) -> Recipe:
    """The recipe, which notes what it is at the beginning of each step and, of a train_step, at its
    end."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    made = RECIPES[name]()
    model, counted = made["model"], made.pop("counted", None)
    given = made["optimizer"]
    optimizers = given if isinstance(given, list) else [given]
    if "train_step" in made:
        inner = made["train_step"]

        def train_step(model: Any, batch: Any, optimizer: Any) -> Any:
            ledger.note("in", model, optimizers, batch, counted)
            out = inner(model, batch, optimizer)
            ledger.note("out", model, optimizers, None, counted)
            return out

        made["train_step"] = train_step
    else:
        loss = made["loss_fn"]

        def loss_fn(model: Any, batch: Any) -> Any:
            ledger.note("in", model, optimizers, batch, counted)
            return loss(model, batch)

        made["loss_fn"] = loss_fn
    assert model is made["model"]
    return {"max_steps": STEPS, **made}
