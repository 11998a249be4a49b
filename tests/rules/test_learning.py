"""Runs in which something does not learn, and healthy neighbours of each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose, marked


def run(
    model: nn.Module,
    *,
    steps: int = 20,
    lr: float = 1e-2,
    loss: Callable[..., torch.Tensor] = F.cross_entropy,
    target: Any = None,
) -> tuple[Finding, ...]:
    torch.manual_seed(1)
    x = torch.randn(6, 32, 10)
    y = target(x) if target is not None else x[:, :, :3].argmax(2)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: loss(model(batch[0]), batch[1]),
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        data=list(zip(x, y, strict=True)),
    )
    return diagnose(recipe, steps)


def serious(findings: tuple[Finding, ...]) -> list[str]:
    return [one.code for one in findings if one.severity != "info"]


def deep(activation: type[nn.Module], layers: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    inner = [layer for _ in range(layers) for layer in (nn.Linear(16, 16), activation())]
    return nn.Sequential(nn.Linear(10, 16), activation(), *inner, nn.Linear(16, 3))


def test_a_deep_stack_of_sigmoids_has_no_gradient_at_its_front() -> None:
    first = run(deep(nn.Sigmoid))[0]
    assert first.code == "ND602"
    assert first.culprit.module == "0"
    assert serious(run(deep(nn.SiLU, 3))) == []


class Head(nn.Module):
    def __init__(self, bias: float, outputs: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(10, 16), nn.Linear(16, outputs)
        nn.init.constant_(self.head.bias, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.head(torch.tanh(self.body(x))))  # the last word


def column(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, :1] - 0.1 * x[:, :, 1:2]


def test_a_dead_output_is_named_at_its_activation() -> None:
    first = run(Head(-20.0), loss=F.mse_loss, target=column)[0]
    assert (first.code, first.severity) == ("ND603", "critical")
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "the last word")


def test_targets_that_an_output_cannot_reach() -> None:
    assert serious(run(Head(1.0), loss=F.mse_loss, target=column)) == ["ND629"]
    assert serious(run(Head(1.0), loss=F.mse_loss, target=lambda x: column(x).abs())) == []
    sigmoid = nn.Sequential(nn.Linear(10, 1), nn.Sigmoid())
    assert serious(run(sigmoid, loss=F.mse_loss, target=lambda x: 40 + column(x))) == ["ND629"]
    assert (
        serious(
            run(
                nn.Sequential(nn.Linear(10, 1), nn.Sigmoid()),
                loss=F.mse_loss,
                target=lambda x: torch.sigmoid(column(x)),
            )
        )
        == []
    )


def test_classes_that_relu_keeps_at_zero() -> None:
    model = Head(0.0, outputs=3)
    with torch.no_grad():
        model.head.bias[1] = -20.0
    first = run(model, steps=12)[0]
    assert (first.code, first.severity) == ("ND603", "critical")
    assert "1 of 3 classes" in first.title


def test_half_dead_layers_are_an_info_and_nearly_dead_ones_a_warning() -> None:
    def layer(dead: int) -> nn.Sequential:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
        with torch.no_grad():
            model[0].bias[:dead] = -50.0
        return model

    found = run(layer(12))
    assert [(one.code, one.severity) for one in found] == [("ND603", "info")]
    assert "12 of 16" in found[0].title
    assert [(one.code, one.severity) for one in run(layer(15))] == [("ND603", "warning")]
    assert run(layer(4)) == ()


def test_saturated_hidden_layers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
    nn.init.normal_(model[0].weight, std=20.0)
    assert serious(run(model)) == ["ND604"]


def test_saturation_beside_a_policy_is_an_info() -> None:
    """A critic's error falls or rises with the policy's success, and its units may saturate."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))
    nn.init.normal_(model[0].weight, std=20.0)

    def loss(out: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        advantage = actions.float() - out[:, 2].detach()
        policy = -(F.log_softmax(out[:, :2], 1)[:, 0] * advantage).mean()
        return policy + 0.5 * F.mse_loss(out[:, 2], actions.float())

    found = run(model, loss=loss)
    assert [one.severity for one in found if one.code == "ND604"] == ["info"]


def test_units_that_began_alike() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    nn.init.constant_(model[0].weight, 0.05)
    nn.init.constant_(model[0].bias, 0.0)
    nn.init.constant_(model[2].weight, 0.1)
    first = run(model)[0]
    assert (first.code, first.culprit.parameter) == ("ND610", "0.weight")


class Gated(nn.Module):
    """Its units part by the random masks that each one gets."""

    def __init__(self, constant: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(10, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        for layer in [self.first, self.second, self.last][:constant]:
            nn.init.normal_(layer.weight, mean=0.1, std=0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(torch.tanh(self.first(x)), 0.3, self.training)
        return self.last(F.dropout(torch.tanh(self.second(hidden)), 0.3, self.training))


def test_layers_that_began_alike_and_parted_by_chance() -> None:
    (found,) = run(Gated(2))
    assert (found.code, found.severity) == ("ND610", "warning")
    assert "2 of 3 layers" in found.title
    assert serious(run(Gated(1))) == []


@pytest.mark.parametrize(("layers", "found"), [((0, 2), True), ((0,), False)])
def test_weights_of_one_sign(layers: tuple[int, ...], found: bool) -> None:
    """All of them are a slip; one may be meant."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    for layer in layers:
        nn.init.uniform_(model[layer].weight, 0.0, 0.4)
    assert ("ND610" in {one.code for one in run(model)}) is found


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(10, 3).requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 10) / 3), nn.Parameter(torch.zeros(3, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def test_matrices_that_begin_at_zero_on_purpose() -> None:
    assert serious(run(LoRA())) == []


def test_updates_that_bfloat16_rounds_away() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3)).bfloat16()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.add_(4.0 * torch.sign(layer.weight))
    x = torch.randn(6, 32, 10).bfloat16()
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]).float(), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        data=list(zip(x, x[:, :, :3].argmax(2), strict=True)),
    )
    found = [one for one in diagnose(recipe, 20) if one.code == "ND605"]
    assert found
    assert found[0].culprit.parameter == "0.weight"


def test_a_bias_before_batch_norm_need_not_move() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    assert serious(run(model)) == []


def test_batch_norm_without_momentum() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 16), nn.BatchNorm1d(16, momentum=0.0), nn.ReLU(), nn.Linear(16, 3)
    )
    first = run(model)[0]
    assert (first.code, first.culprit.module) == ("ND625", "1")


class Blind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(x).mean(0, keepdim=True).expand(len(x), -1))


def test_the_same_output_for_every_sample() -> None:
    assert "ND618" in serious(run(Blind()))


def test_a_first_loss_far_above_chance() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 3)
    nn.init.normal_(model.weight, std=30.0)
    found = run(model, steps=5, lr=1e-4)
    assert [(one.code, one.severity) for one in found] == [("ND611", "info")]
    stuck = run(model, steps=40, lr=1e-6)
    assert [(one.code, one.severity) for one in stuck] == [("ND611", "warning")]


def margin(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.relu(out.mean() * 0.0 - 1.0)


def test_a_loss_that_is_always_zero() -> None:
    assert run(nn.Linear(10, 3), loss=margin)[0].code == "ND621"


@pytest.mark.parametrize("eval_at", ["build", "step", "frozen"])
def test_the_mode_that_a_model_trains_in(eval_at: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.Dropout(0.3), nn.Linear(16, 3))
    if eval_at == "build":
        model.eval()
    if eval_at == "frozen":
        model[1].eval()
        model.requires_grad_(False)
        model.append(nn.Linear(3, 3))

    def step(model: nn.Module, batch: Any, optimizer: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        if eval_at == "step":
            model.eval()  # and never back
        return loss

    x = torch.randn(6, 32, 10)
    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3),
        data=list(zip(x, x[:, :, :3].argmax(2), strict=True)),
    )
    found = diagnose(recipe, 12)
    if eval_at == "frozen":
        assert serious(found) == []
        return
    assert (found[0].code, found[0].severity) == ("ND613", "warning")
    if eval_at == "step":
        assert found[0].culprit.location is not None
        assert found[0].culprit.location.line == marked(__file__, "and never back")


def test_a_signal_that_shrinks_from_layer_to_layer() -> None:
    torch.manual_seed(0)
    widths = [10, *[64] * 7, 3]
    model = nn.Sequential(
        *[layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())][
            :-1
        ]
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    first = run(model, steps=20, lr=1e-6)[0]
    assert first.code == "ND602"
    assert "layers get gradients below" in first.title


class Encoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def test_an_encoder_that_is_put_into_eval_mode_before_every_step() -> None:
    def step(model: Encoded, batch: Any, optimizer: Any) -> torch.Tensor:
        model.encoder.eval()  # to look at its features
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    model = Encoded()
    x = torch.randn(6, 32, 10)
    recipe = Recipe(
        model=model,
        train_step=step,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=list(zip(x, x[:, :, :3].argmax(2), strict=True)),
    )
    first = diagnose(recipe, 12)[0]
    assert (first.code, first.severity) == ("ND613", "critical")
    assert first.culprit.location is not None
    assert first.culprit.location.line == marked(__file__, "to look at its features")


@pytest.mark.parametrize(
    ("momentum", "told"), [(0.1, False), (0.99, True), (0.5, False), (1.0, False), (None, False)]
)
def test_statistics_that_forget(momentum: float | None, told: bool) -> None:
    """1.0 and None are used to take the statistics anew."""
    torch.manual_seed(0)
    layers = nn.Linear(10, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3)
    assert serious(run(nn.Sequential(*layers))) == (["ND625"] if told else [])
