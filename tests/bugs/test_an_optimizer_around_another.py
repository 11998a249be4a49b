"""Sharpness-aware minimisation wraps an optimizer and steps it inside of its own step. The inner
one keeps no state; the outer one's was taken for state that had just been lost (ND626)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from nanodoc.recipe.recipe import Recipe
from tests.bugs.test_smaller_steps_that_only_wait import found


class Around(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.inner = torch.optim.SGD(self.param_groups, lr=lr)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # returns no loss
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["old"] = parameter.clone()
                    parameter.add_(parameter.grad, alpha=group["rho"])
        self.zero_grad()
        with torch.enable_grad():
            closure()
        with torch.no_grad():
            for parameter, state in self.state.items():
                parameter.copy_(state["old"])
        self.inner.step()
        self.zero_grad()


def test_no_state_is_lost() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> Any:
        def closure() -> Any:
            loss = F.mse_loss(model(batch), batch.sum(1, keepdim=True))
            loss.backward()
            return loss

        optimizer.step(closure)
        return F.mse_loss(model(batch), batch.sum(1, keepdim=True))

    recipe = Recipe(
        model=model,
        data=[torch.randn(16, 4) for _ in range(40)],
        train_step=step,
        optimizer=Around(model.parameters(), lr=0.05),
    )
    assert [finding.title for finding in found(recipe, 40) if finding.severity != "info"] == []
