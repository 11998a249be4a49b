"""`nanodoc.probe`: nothing without a run, a row and a finding with one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import nanodoc
from nanodoc import Recipe
from tests.helpers import diagnose, line_of, run_engine


def test_without_a_run_it_returns_its_argument() -> None:
    x = torch.tensor([float("nan")], requires_grad=True)
    assert nanodoc.probe(x, "anywhere") is x
    assert nanodoc.probe("no tensor", "anywhere") == "no tensor"
    code = "import sys, nanodoc; nanodoc.probe(1, 'x'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Net(nn.Module):
    def __init__(self, *, masked: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.masked = nn.Linear(4, 8), nn.Linear(8, 1), masked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = nanodoc.probe(self.first(x), "after first")
        logs = h if self.masked else torch.log(h.detach())  # log of a negative number
        logs = nanodoc.probe(logs, "logs")
        scores = nanodoc.probe(h.masked_fill(h < 0, float("-inf")), "scores")
        weights = torch.softmax(torch.cat([scores, torch.zeros(len(x), 1)], 1), 1)
        return self.last(weights[:, :8]) + 0 * torch.nan_to_num(logs).sum()  # type: ignore[no-any-return]


def recipe(model: nn.Module, train_step: Any = None) -> Recipe:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
    return Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        train_step=train_step,
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )


def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    optimizer.step()
    return loss


def test_nan_at_a_probe_is_traced_to_its_op_though_the_loss_is_finite() -> None:
    for train_step in (None, step):
        (finding,) = diagnose(recipe(Net(), train_step), steps=4)
        assert finding.name == "domain-error"
        assert finding.culprit.location is not None
        assert finding.culprit.location.line == line_of(__file__, "# log of a negative number")
        assert any("probe 'logs' saw NaN" in what for what, _ in finding.effects)


def test_a_mask_of_minus_infinity_is_no_finding() -> None:
    for train_step in (None, step):
        assert diagnose(recipe(Net(masked=True), train_step), steps=4) == ()


def test_a_value_that_no_op_made_is_reported_with_its_label() -> None:
    class Given(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nanodoc.probe(torch.tensor([1.0, float("nan")]), "a constant")  # given as it is
            return self.linear(x)  # type: ignore[no-any-return]

    finding = diagnose(recipe(Given()), steps=2)[0]
    assert finding.name == "nonfinite-probe"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "# given as it is")
    assert "a constant" in finding.title


def test_probes_change_nothing_of_the_run() -> None:
    results = []
    for watched in (False, True):
        one = recipe(Net(masked=True))
        if watched:
            run_engine(one, 8)
        else:
            for i in range(8):
                batch = list(one.data)[i % 4]
                one.optimizers[0].zero_grad()
                assert one.loss_fn is not None
                one.loss_fn(one.model, batch).backward()
                one.optimizers[0].step()
        results.append({k: v.clone() for k, v in one.model.state_dict().items()})
    assert all(torch.equal(results[0][key], results[1][key]) for key in results[0])


def test_inside_compiled_code_it_is_left_out() -> None:
    compiled = torch.compile(
        lambda x: nanodoc.probe(x * 2, "inside"), backend="eager", fullgraph=True
    )
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


class Ops(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_without_a_run_it_costs_no_op() -> None:
    with Ops() as ops:
        nanodoc.probe(torch.ones(3), "x")
    assert ops.count == 1  # the ones
