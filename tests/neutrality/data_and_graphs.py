"""Trainings with unusual data and graphs, or with something unusual around them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts as contexts
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tests.neutrality.recipes import (
    Net,
    Recipe,
    loader,
    loss_of,
    of,
    ordinary_step,
    recipe,
    rows,
    stepping,
)

# -- data ------------------------------------------------------------------------------------------


@recipe
def a_generator_of_ones_own() -> Recipe:
    return of(Net(), data=loader(generator=torch.Generator().manual_seed(5)))


@recipe
def workers() -> Recipe:
    return of(Net(), data=loader(num_workers=1))


@recipe
def workers_that_stay() -> Recipe:
    return of(Net(), data=loader(num_workers=1, persistent_workers=True, prefetch_factor=3))


@recipe
def batches_without_end() -> Recipe:
    def batches() -> Iterator[Any]:
        while True:
            yield torch.randn(8, 8), torch.randint(0, 3, (8,))

    return of(Net(), data=batches())


@recipe
def weighted_samples() -> Recipe:
    x, y = rows()
    sampler = WeightedRandomSampler((y + 1).double().tolist(), len(y))
    return of(Net(), data=DataLoader(TensorDataset(x, y), batch_size=8, sampler=sampler))


@recipe
def a_buffer_of_the_past() -> Recipe:
    past: deque[Any] = deque(maxlen=20)

    def loss(model: Any, batch: Any) -> Any:
        past.extend(zip(*batch, strict=True))
        picked = [past[int(i)] for i in torch.randint(0, len(past), (6,))]
        x, y = (torch.stack(column) for column in zip(*picked, strict=True))
        return loss_of(model, (x, y))

    return of(Net(), loss_fn=loss, counted=lambda: [y for _, y in past])


# -- graphs ----------------------------------------------------------------------------------------


@recipe
def gradients_by_function() -> Recipe:
    model = nn.Linear(8, 3)

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        parameters = dict(model.named_parameters())

        def of_one(parameters: Any, x: Any, y: Any) -> Any:
            out = torch.func.functional_call(model, parameters, (x[None],))
            return F.cross_entropy(out, y[None])

        each = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))(parameters, *batch)
        for name, parameter in parameters.items():
            parameter.grad = each[name].mean(0)
        optimizer.step()
        return loss_of(model, batch)

    return stepping(step, model)


@recipe
def vectorized() -> Recipe:
    def loss(model: Any, batch: Any) -> Any:
        return F.cross_entropy(torch.func.vmap(model)(batch[0]), batch[1])

    return of(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)), loss_fn=loss)


@recipe
def checkpointed_in_the_old_way() -> Recipe:
    class Saving(Net):
        def forward(self, x: torch.Tensor) -> Any:
            hidden = self.first(x)
            return checkpoint(lambda h: self.last(self.dropout(h)), hidden, use_reentrant=True)

    return of(Saving())


@recipe
def checkpointed_in_part() -> Recipe:
    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        kept = op == torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    class Saving(Net):
        def forward(self, x: torch.Tensor) -> Any:
            return self.last(
                checkpoint(
                    lambda h: self.dropout(torch.relu(self.first(h))),
                    x,
                    use_reentrant=False,
                    context_fn=lambda: contexts(policy),
                )
            )

    return of(Saving())


@recipe
def differentiated_twice() -> Recipe:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward(retain_graph=True)
        (0.1 * loss).backward()
        optimizer.step()
        return loss

    return stepping(step, Net())


@recipe
def gradients_asked_for() -> Recipe:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        parameters = list(model.parameters())
        loss = loss_of(model, batch)
        for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = grad
        optimizer.step()
        return loss.detach()

    return stepping(step, Net())


@recipe
def hooks_of_saved_tensors() -> Recipe:
    calls = {"pack": 0}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        calls["pack"] += 1
        return tensor

    def loss(model: Any, batch: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return loss_of(model, batch)

    return of(Net(), loss_fn=loss, counted=lambda: calls["pack"])


# -- around them -----------------------------------------------------------------------------------


@recipe
def modes_of_ones_own() -> Recipe:
    """What they count is theirs to notice: it is in the docs."""

    class Ops(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return op(*args, **(kwargs or {}))

    class Calls(TorchFunctionMode):
        def __torch_function__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return op(*args, **(kwargs or {}))

    def loss(model: Any, batch: Any) -> Any:
        with Ops(), Calls():
            return loss_of(model, batch)

    return of(Net(), loss_fn=loss)


@recipe
def a_tensor_of_ones_own() -> Recipe:
    class Mine(torch.Tensor):
        pass

    def loss(model: Any, batch: Any) -> Any:
        out = F.cross_entropy(model(batch[0].as_subclass(Mine)), batch[1])
        return out.as_subclass(torch.Tensor)

    return of(Net(), loss_fn=loss)


@recipe
def only_what_is_deterministic() -> Recipe:
    torch.use_deterministic_algorithms(True)
    return of(Net(), counted=torch.are_deterministic_algorithms_enabled)


@recipe
def looks_without_gradients() -> Recipe:
    seen: list[float] = []

    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        loss = ordinary_step(model, batch, optimizer)
        model.eval()
        with torch.inference_mode():
            seen.append(float(loss_of(model, batch)))
        model.train()
        return loss

    return stepping(step, Net(), counted=lambda: list(seen))


@recipe
def a_thread_that_differentiates() -> Recipe:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        optimizer.step()
        return loss.detach()

    return stepping(step, Net())


@recipe
def data_exchanged() -> Recipe:
    def step(model: Any, batch: Any, optimizer: Any) -> Any:
        loss = ordinary_step(model, batch, optimizer)
        with torch.no_grad():
            model.last.weight.data = model.last.weight.data.clamp(-1, 1)
        return loss

    return stepping(step, Net())


@recipe
def compiled() -> Recipe:
    model = Net()
    model.compile(backend="aot_eager")
    return of(model)
