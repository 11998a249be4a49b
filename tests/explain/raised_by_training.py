"""Errors of autograd, optimizers and GradScaler, raised for real: `raises_<id>`."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.checkpoint import checkpoint

# autograd


def raises_loss_without_graph() -> None:
    nn.Linear(3, 1)(torch.randn(2, 3)).detach().mean().backward()


def raises_backward_twice() -> None:
    loss = nn.Linear(3, 1)(torch.randn(2, 3)).pow(2).mean()
    loss.backward()
    loss.backward()


def raises_in_place_overwrite() -> None:
    out = torch.sigmoid(nn.Linear(3, 1)(torch.randn(2, 3)))
    out += 1
    out.sum().backward()


def raises_in_place_on_leaf() -> None:
    weight = torch.ones(3, requires_grad=True)
    weight += 1


def raises_view_in_place() -> None:
    first, _ = nn.Linear(3, 2)(torch.randn(2, 3)).unbind()
    first += 1


def raises_numpy_of_graph() -> None:
    nn.Linear(3, 1)(torch.randn(2, 3)).numpy()


def raises_backward_of_non_scalar() -> None:
    nn.Linear(3, 1)(torch.randn(2, 3)).backward()


def raises_gradient_of_unused() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.sum(), [x, y])


def raises_gradient_of_integers() -> None:
    nn.Parameter(torch.tensor([1, 2]))


def _in_anomaly_mode(compute: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            compute().backward()


def raises_nan_in_backward_root() -> None:
    x = torch.zeros(2, requires_grad=True)
    _in_anomaly_mode(lambda: (torch.sqrt(x) * 0.0).sum())


def raises_nan_in_backward_softmax() -> None:
    x = torch.tensor([[1.0, float("inf")]], requires_grad=True)
    _in_anomaly_mode(lambda: F.log_softmax(x, -1)[0, 0])


def raises_nan_in_backward_division() -> None:
    x = torch.zeros(2, requires_grad=True)
    _in_anomaly_mode(lambda: (x / x).sum())


def raises_nan_in_backward_decomposition() -> None:
    x = torch.eye(3).requires_grad_()
    _in_anomaly_mode(lambda: torch.linalg.svd(x)[0].sum() + torch.linalg.svd(x)[2][0].sum())


def raises_nan_in_backward_product() -> None:
    x = torch.full((2,), float("inf"), requires_grad=True)
    _in_anomaly_mode(lambda: (x * torch.zeros(2, requires_grad=True)).mul(float("inf")).sum())


def raises_nan_in_backward() -> None:
    x = torch.full((2, 2), float("nan"), requires_grad=True)
    _in_anomaly_mode(lambda: torch.sin(x).sum())


def raises_inference_tensor() -> None:
    with torch.inference_mode():
        features = torch.randn(2, 3)
    nn.Linear(3, 1)(features)


def raises_deepcopy_of_non_leaf() -> None:
    copy.deepcopy(nn.Linear(3, 1)(torch.randn(2, 3)))


def raises_requires_grad_of_non_leaf() -> None:
    nn.Linear(3, 1)(torch.randn(2, 3)).requires_grad = False


def raises_grad_of_non_leaf() -> None:
    out = nn.Linear(3, 1)(torch.randn(2, 3))
    out.sum().backward()
    _ = out.grad


class _Wrong(torch.autograd.Function):
    answer: Any = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Wrong.answer


def _wrong(answer: Any) -> None:
    _Wrong.answer = answer
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    _Wrong.apply(x, y).sum().backward()


def raises_gradient_shape() -> None:
    _wrong((torch.ones(5, 7), torch.ones(2, 3)))


def raises_gradient_count() -> None:
    _wrong(torch.ones(2, 3))


def raises_gradient_assignment() -> None:
    nn.Linear(3, 1).weight.grad = torch.zeros(5)


def raises_checkpoint_recomputation() -> None:
    calls: list[int] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.sin().cos() if len(calls) == 1 else x.sin()

    checkpoint(layer, torch.ones(2, requires_grad=True), use_reentrant=False).sum().backward()


def raises_checkpoint_without_grad() -> None:
    checkpoint(nn.Linear(3, 1), torch.randn(2, 3), use_reentrant=True)


def raises_tensor_of_tensor() -> None:
    torch.tensor(torch.ones(2))


def raises_view_in_place__no_grad() -> None:
    base = torch.ones(3, requires_grad=True) * 2
    with torch.no_grad():
        view = base[0]
    view += 1


def raises_inference_tensor__in_place() -> None:
    with torch.inference_mode():
        buffer = torch.zeros(2)
    buffer += 1


def raises_trace_of_parameter() -> None:
    hidden = nn.Linear(2, 2).weight
    torch.jit.trace(lambda x: x @ hidden, (torch.ones(2, 2),))


# optimizers and schedules


def raises_number_read_as_text() -> None:
    torch.optim.SGD(nn.Linear(2, 1).parameters(), lr="1e-4")  # type: ignore[arg-type]  # the mistake under test


def raises_optimizer_without_parameters() -> None:
    torch.optim.Adam([])


def raises_optimizer_non_leaf() -> None:
    torch.optim.SGD([torch.ones(2, requires_grad=True) * 2], lr=0.1)


def raises_optimizer_duplicate_parameters() -> None:
    w = nn.Parameter(torch.ones(2))
    torch.optim.SGD([{"params": [w]}, {"params": [w]}], lr=0.1)


def raises_optimizer_of_names() -> None:
    torch.optim.SGD(nn.Linear(2, 1).state_dict(), lr=0.1)


def raises_optimizer_state_size() -> None:
    small, large = nn.Linear(2, 1, bias=False), nn.Linear(2, 1)
    torch.optim.SGD(large.parameters(), lr=0.1).load_state_dict(
        torch.optim.SGD(small.parameters(), lr=0.1).state_dict()
    )


def raises_optimizer_state_size__groups() -> None:
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    two = torch.optim.SGD([{"params": a.parameters()}, {"params": b.parameters()}], lr=0.1)
    torch.optim.SGD(a.parameters(), lr=0.1).load_state_dict(two.state_dict())


def raises_learning_rate_invalid() -> None:
    torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=-1.0)


def raises_lbfgs_closure() -> None:
    torch.optim.LBFGS(nn.Linear(2, 1).parameters()).step()


def raises_sparse_gradients() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    layer(torch.tensor([1])).sum().backward()
    torch.optim.Adam(layer.parameters()).step()


def raises_initial_lr_missing() -> None:
    CosineAnnealingLR(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), 10, last_epoch=5)


def raises_scheduler_before_optimizer() -> None:
    CosineAnnealingLR(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1), 10).step()


def raises_schedule_over() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    for _ in range(4):
        optimizer.step()
        schedule.step()


def raises_schedule_not_of_optimizer() -> None:
    CosineAnnealingLR(nn.Linear(2, 1), 10)  # type: ignore[arg-type]  # the mistake under test


def raises_plateau_without_metric() -> None:
    torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    ).step()  # type: ignore[call-arg]


# mixed precision


def _scaled(model: nn.Module) -> tuple[Any, torch.optim.Optimizer]:
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.randn(2, 3)).sum()).backward()
    return scaler, optimizer


def raises_no_inf_checks() -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1, requires_grad=True)).backward()
    scaler.step(torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1))


def raises_unscale_half_gradients() -> None:
    model = nn.Linear(3, 1).half()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.randn(2, 3).half()).float().sum()).backward()
    scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))


def raises_unscaled_twice() -> None:
    scaler, optimizer = _scaled(nn.Linear(3, 1))
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)


def raises_unscaled_after_step() -> None:
    scaler, optimizer = _scaled(nn.Linear(3, 1))
    scaler.step(optimizer)
    scaler.unscale_(optimizer)


def raises_stepped_twice() -> None:
    scaler, optimizer = _scaled(nn.Linear(3, 1))
    scaler.step(optimizer)
    scaler.step(optimizer)


def raises_update_without_step() -> None:
    torch.amp.GradScaler("cpu").update()


def raises_half_value_overflow() -> None:
    torch.zeros(2, dtype=torch.float16).masked_fill_(torch.ones(2, dtype=torch.bool), -1e9)
