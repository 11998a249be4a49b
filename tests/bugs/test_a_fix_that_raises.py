"""A detach that one network's loss needs and the other's does not: without it the step raised, the
report said that the parameters "still get none", and showed the change that raises as the fix."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def test_the_change_that_raises_is_not_shown() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"maker": nn.Linear(4, 8), "judge": nn.Linear(8, 1)})
    maker, judge = model["maker"], model["judge"]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (maker, judge)]
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)

    def train_step(model: nn.Module, real: torch.Tensor) -> None:
        fake = maker(torch.randn(16, 4)).detach()
        judged = F.binary_cross_entropy_with_logits(judge(real), ones)
        judged = judged + F.binary_cross_entropy_with_logits(judge(fake), zeros)
        optimizers[1].zero_grad()
        judged.backward()
        optimizers[1].step()
        made = F.binary_cross_entropy_with_logits(judge(fake), ones)
        optimizers[0].zero_grad()
        made.backward()
        optimizers[0].step()

    recipe = Recipe(
        model=model,
        train_step=train_step,
        optimizer=optimizers,
        data=list(torch.randn(8, 16, 8)),
    )
    first = diagnose(recipe, steps=8)[0]
    assert first.code == "ND501"
    assert [row["outcome"] for row in first.experiments] == ["the step raises RuntimeError"]
    assert [fix.patch for fix in first.fixes] == [None]
