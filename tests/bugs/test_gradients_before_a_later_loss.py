"""In a train_step with two optimizers the first step may poison the weights, and the second loss is
NaN: the first gradient is the cause.

The later loss was examined instead, and a tensor "made outside the step" was blamed for it.
"""

from __future__ import annotations

import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose, line_of


def test_the_first_symptom_is_examined() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"maker": nn.Linear(3, 3), "judge": nn.Linear(3, 1)})
    first = torch.optim.SGD(model["judge"].parameters(), lr=0.1)
    second = torch.optim.SGD(model["maker"].parameters(), lr=0.1)

    def train_step(
        model: nn.ModuleDict, batch: torch.Tensor, optimizers: list[torch.optim.Optimizer]
    ) -> torch.Tensor:
        made = model["maker"](batch)
        first.zero_grad()
        size = torch.sqrt((model["judge"](made.detach()) * batch[:, :1]).pow(2))
        loss: torch.Tensor = size.mean()
        loss.backward()
        first.step()
        second.zero_grad()
        model["judge"](made).mean().backward()
        second.step()
        return loss

    data = [torch.randn(4, 3), torch.zeros(4, 3)]
    (finding,) = diagnose(
        Recipe(model=model, train_step=train_step, data=data, optimizer=[first, second]), steps=2
    )
    assert finding.name == "infinite-gradient"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(__file__, "size = torch.sqrt")
