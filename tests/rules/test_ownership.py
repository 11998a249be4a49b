"""Who owns which parameter: each mistake is named, and what is done on purpose is left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import marked


def found(tmp_path: Path, build: Callable[[], Any], steps: int = 4) -> tuple[Finding, ...]:
    """Through the pipeline, since what build() does is watched there."""
    config = Config(device="cpu", steps=steps, snapshot_dir=str(tmp_path))
    return run_training(f"{__file__}:{build.__name__}", config).findings


def one(tmp_path: Path, build: Callable[[], Any], name: str, text: str) -> Finding:
    findings = found(tmp_path, build)
    assert [f.name for f in findings] == [name]
    where = findings[0].culprit.location
    assert where is not None
    assert where.line == marked(__file__, text)
    return findings[0]


def data() -> list[Any]:
    torch.manual_seed(0)
    return [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(4)]


def loss_fn(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def recipe(model: nn.Module, optimizer: Any, loss: Any = loss_fn) -> dict[str, Any]:
    return {"model": model, "loss_fn": loss, "data": data(), "optimizer": optimizer}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def only_the_body() -> Any:
    model = net()
    return recipe(model, torch.optim.SGD(model[:4].parameters(), lr=0.1))  # no head


def test_a_head_in_no_optimizer(tmp_path: Path) -> None:
    finding = one(tmp_path, only_the_body, "parameter-not-in-optimizer", "no head")
    assert finding.culprit.parameter == "4.weight"
    assert "4.weight, 4.bias" in finding.title


def loss_with_centres() -> Any:
    model, centres = net(), nn.Linear(3, 3)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(centres(model(batch[0])), batch[1])

    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)  # no centres


def test_a_layer_of_the_loss_in_no_optimizer(tmp_path: Path) -> None:
    finding = one(tmp_path, loss_with_centres, "parameter-not-in-optimizer", "no centres")
    assert finding.culprit.parameter == "centres.weight"


def copied_afterwards() -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # of the original
    return recipe(copy.deepcopy(model), optimizer)


def test_an_optimizer_of_the_original(tmp_path: Path) -> None:
    one(tmp_path, copied_afterwards, "stale-optimizer", "of the original")


class Holder(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.out = nn.Linear(6, 3)
        if kind == "tuple":
            self.inner = (nn.Linear(6, 6), nn.Linear(6, 6))  # kept in a tuple
        elif kind == "parameters":
            self.inner = [nn.Parameter(torch.eye(6)), nn.Parameter(torch.eye(6))]  # type: ignore[assignment]  # kept in a list
        elif kind == "teacher":
            self.inner = [nn.Linear(6, 6).requires_grad_(False)]  # type: ignore[assignment]
        else:
            self.inner = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])  # type: ignore[assignment]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.inner:
            x = layer(x) if isinstance(layer, nn.Module) else x @ layer
        return self.out(x)  # type: ignore[no-any-return]


def of(kind: str) -> Any:
    model = Holder(kind)
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def in_a_tuple() -> Any:
    return of("tuple")


def bare_parameters() -> Any:
    return of("parameters")


def hidden_teacher() -> Any:
    return of("teacher")


def registered() -> Any:
    return of("registered")


def test_layers_in_a_tuple(tmp_path: Path) -> None:
    finding = one(tmp_path, in_a_tuple, "unregistered-module", "kept in a tuple")
    assert finding.fixes[0].title == "self.inner = nn.ModuleList(...)"


def test_parameters_in_a_list(tmp_path: Path) -> None:
    finding = one(tmp_path, bare_parameters, "unregistered-module", "kept in a list")
    assert finding.fixes[0].title == "self.inner = nn.ParameterList(...)"


def same_thing_thrice() -> Any:
    block = nn.Linear(6, 6)
    model = nn.Sequential(*[block] * 3, nn.Linear(6, 3))  # one block
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_one_layer_three_times(tmp_path: Path) -> None:
    finding = one(tmp_path, same_thing_thrice, "repeated-module", "one block")
    assert "3 times" in finding.title


class Projects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.Linear(6, 8)(x))  # type: ignore[no-any-return]  # made here


def fresh_layer() -> Any:
    model = Projects()
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_layer_made_in_forward(tmp_path: Path) -> None:
    one(tmp_path, fresh_layer, "layer-built-in-forward", "made here")


def attribute_freeze() -> Any:
    model = net()
    model[0].requires_grad = False  # type: ignore[assignment]  # a plain attribute
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_freeze_that_freezes_nothing(tmp_path: Path) -> None:
    one(tmp_path, attribute_freeze, "ineffective-freeze", "a plain attribute")


def with_a_coefficient(held: bool, moved: bool = False) -> Any:
    model, factor = net(), torch.tensor(1.5, requires_grad=True)
    given = [*model.parameters(), *([factor] if held else [])]

    def loss(model: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        if moved and factor.grad is not None:
            with torch.no_grad():
                factor.sub_(0.1 * factor.grad)
        return F.cross_entropy(factor * model(x), y)

    return recipe(model, torch.optim.SGD(given, lr=0.1), loss)  # all but the factor


def a_coefficient_in_no_optimizer() -> Any:
    return with_a_coefficient(held=False)


def a_coefficient_that_is_held() -> Any:
    return with_a_coefficient(held=True)


def a_coefficient_moved_by_hand() -> Any:
    return with_a_coefficient(held=False, moved=True)


def a_bias_of_a_network_that_nobody_knows() -> Any:
    model, parts = net(), [torch.randn(1, 3), torch.zeros(1)]
    weight, bias = (part.requires_grad_() for part in parts)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        scores = model(x)
        return F.cross_entropy(scores, y) + 0.01 * F.linear(scores, weight, bias).mean()

    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)


def test_a_number_of_no_module_in_no_optimizer(tmp_path: Path) -> None:
    told = one(
        tmp_path,
        a_coefficient_in_no_optimizer,
        "parameter-not-in-optimizer",
        "all but the factor",
    )
    assert told.severity == "warning"
    for build in (
        a_coefficient_that_is_held,
        a_coefficient_moved_by_hand,
        a_bias_of_a_network_that_nobody_knows,
    ):
        assert "parameter-not-in-optimizer" not in {f.name for f in found(tmp_path, build)}


def all_frozen() -> Any:
    model = net()
    for parameter in model.parameters():
        parameter.requires_grad = False  # all of them
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_everything_is_frozen(tmp_path: Path) -> None:
    finding = one(tmp_path, all_frozen, "unexpectedly-frozen", "all of them")
    assert finding.severity == "critical"
    assert any("does not require grad" in what for what, _ in finding.effects)


class WithTarget(nn.Module):
    """A network beside its target, which follows it by an average."""

    def __init__(self, copied: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.body_target = copy.deepcopy(self.body) if copied else self.body
        self.head_target = copy.deepcopy(self.head)
        for parameter in (*self.body_target.parameters(), *self.head_target.parameters()):
            parameter.requires_grad = False  # the target

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            self.head_target(self.body_target(x))
        return self.head(self.body(x))


def a_target_that_is_no_copy() -> Any:
    model = WithTarget(copied=False)
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def a_target() -> Any:
    model = WithTarget(copied=True)
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_target_network_that_is_the_network_itself(tmp_path: Path) -> None:
    told = one(tmp_path, a_target_that_is_no_copy, "unexpectedly-frozen", "the target")
    assert told.title.startswith("body_target is body itself")
    assert "unexpectedly-frozen" not in {f.name for f in found(tmp_path, a_target)}


class Adapted(nn.Module):
    """A layer beside which a low-rank one learns, that begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        nn.init.zeros_(self.up.weight)
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.relu(self.base(x) + self.up(self.down(x))))


def adapters_frozen() -> Any:
    model = Adapted()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = "head" in name  # the adapter, too
    return recipe(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    )


def adapters_trained() -> Any:
    model = Adapted()
    return recipe(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    )


def test_an_adapter_is_frozen_at_zero(tmp_path: Path) -> None:
    told = one(tmp_path, adapters_frozen, "unexpectedly-frozen", "the adapter, too")
    assert (told.severity, told.title) == ("warning", "up.weight is frozen at zero")
    assert "unexpectedly-frozen" not in {f.name for f in found(tmp_path, adapters_trained)}


def wrong_end() -> Any:
    model = net()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("2")  # the middle only
    return recipe(
        model, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    )


def test_a_fresh_head_is_frozen(tmp_path: Path) -> None:
    finding = one(tmp_path, wrong_end, "unexpectedly-frozen", "the middle only")
    assert finding.severity == "warning"
    assert finding.culprit.parameter == "4.bias"


def gradients_off() -> Any:
    model = net()
    torch.set_grad_enabled(False)  # left over
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_gradients_switched_off_before_training(tmp_path: Path) -> None:
    try:
        one(tmp_path, gradients_off, "loss-without-grad", "left over")
    finally:
        torch.set_grad_enabled(True)


# -- on purpose ------------------------------------------------------------------------------------


def frozen_backbone() -> Any:
    model = net()
    model[:4].requires_grad_(False)
    return recipe(model, torch.optim.SGD(model[4].parameters(), lr=0.1))


def loaded_backbone() -> Any:
    model = net()
    model[:4].load_state_dict(net()[:4].state_dict())
    return recipe(model, torch.optim.SGD(model[4].parameters(), lr=0.1))


def moved_by_hand() -> Any:
    model = net()

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        model.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for parameter in model[4].parameters():
                parameter -= 0.1 * parameter.grad
        return loss

    return {**recipe(model, torch.optim.SGD(model[:4].parameters(), lr=0.1)), "train_step": step}


def shared_on_purpose() -> Any:
    block = nn.Linear(6, 6)

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.out = block, nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                x = torch.tanh(self.block(x))
            return self.out(x)  # type: ignore[no-any-return]

    model = Loop()
    return recipe(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    "build", [registered, hidden_teacher, frozen_backbone, moved_by_hand, shared_on_purpose]
)
def test_what_is_meant_is_left_alone(tmp_path: Path, build: Callable[[], Any]) -> None:
    assert found(tmp_path, build) == ()


def test_a_loaded_backbone_left_out_is_only_told(tmp_path: Path) -> None:
    assert [(f.name, f.severity) for f in found(tmp_path, loaded_backbone)] == [
        ("parameter-not-in-optimizer", "info")
    ]


def sgd_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def with_adapter(model: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*model, nn.Linear(3, 3))


def adapters_behind_the_optimizer() -> Any:
    model = net()
    optimizer = sgd_of(model)  # too early
    return recipe(with_adapter(model), optimizer)


def test_a_layer_that_is_put_in_behind_the_optimizer(tmp_path: Path) -> None:
    finding = one(
        tmp_path, adapters_behind_the_optimizer, "parameter-not-in-optimizer", "too early"
    )
    assert "created after the optimizer" in finding.explanation


class _LoraLinear(nn.Module):
    """As peft puts one around a layer."""

    __module__ = "peft.tuners.lora.layer"

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.base_layer(x) + self.up(self.down(x))


class ToyForSequenceClassification(nn.Module):
    __module__ = "transformers.models.toy"

    def __init__(self, *, head_trains: bool) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"query": _LoraLinear(nn.Linear(6, 8))})
        self.classifier = nn.Linear(8, 3).requires_grad_(head_trains)  # the head

    def forward(self, x: torch.Tensor) -> Any:
        return self.classifier(torch.relu(self.encoder["query"](x)))


def adapters_beside(*, head_trains: bool) -> Any:
    model = ToyForSequenceClassification(head_trains=head_trains)
    return recipe(model, torch.optim.Adam(p for p in model.parameters() if p.requires_grad))


def head_forgotten() -> Any:
    return adapters_beside(head_trains=False)


def head_trained() -> Any:
    return adapters_beside(head_trains=True)


def test_a_new_head_beside_adapters_is_frozen(tmp_path: Path) -> None:
    told = one(tmp_path, head_forgotten, "unexpectedly-frozen", "the head")
    assert "task_type" in told.explanation


def test_a_new_head_beside_adapters_trains(tmp_path: Path) -> None:
    assert found(tmp_path, head_trained) == ()


def given_the_others() -> Any:
    generator, critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer_c = torch.optim.Adam(critic.parameters(), 1e-3)
    optimizer_g = torch.optim.Adam(critic.parameters(), 1e-3)  # copied

    def step(model: Any, batch: Any, optimizers: Any) -> Any:
        model.zero_grad()
        made = generator(torch.randn(len(batch[0]), 2))
        wrong = F.softplus(model(made.detach())).mean() + F.softplus(-model(batch[0][:, :4])).mean()
        wrong.backward()
        optimizer_c.step()
        generator.zero_grad()
        right = F.softplus(-model(made)).mean()
        right.backward()
        optimizer_g.step()
        return right

    return {
        "model": critic,
        "train_step": step,
        "data": data(),
        "optimizer": [optimizer_c, optimizer_g],
    }


def test_an_optimizer_that_was_given_another_ones_parameters(tmp_path: Path) -> None:
    told = one(tmp_path, given_the_others, "parameter-not-in-optimizer", "copied")
    assert "Two optimizers hold the same parameters instead" in told.explanation
    assert "accumulating-gradients" not in {f.name for f in found(tmp_path, given_the_others)}
