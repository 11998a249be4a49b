"""A term of the loss that compares two detached tensors was told as a loss that is wrapped anew,
and the embedding without a gradient was blamed on another term, which detaches it on purpose."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


class Quantizer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes, self.decoder = (
            nn.Linear(6, 4),
            nn.Embedding(8, 4),
            nn.Linear(4, 6),
        )

    def forward(self, x: torch.Tensor) -> Any:
        z = self.encoder(x)
        quantized = self.codes(torch.cdist(z, self.codes.weight).argmin(1))
        commitment = F.mse_loss(quantized.detach(), z)
        codebook = F.mse_loss(quantized.detach(), z.detach())
        return self.decoder(z + (quantized - z).detach()), codebook + 0.25 * commitment


def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
    decoded, quantizing = model(batch)
    return F.mse_loss(decoded, batch) + quantizing  # type: ignore[no-any-return]  # a module's


def test_it_is_called_detached() -> None:
    torch.manual_seed(0)
    model = Quantizer()
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=loss_fn,
        data=list(torch.randn(10, 16, 6)),
    )
    found = [finding for finding in diagnose(recipe, 10) if finding.code == "ND501"]
    assert found[0].severity == "critical"
    location = found[0].culprit.location
    assert location is not None
    assert location.code.startswith("codebook =")
    assert location.expression == "quantized.detach()"
    assert all("wrap" not in finding.title for finding in found)
    assert any("a term of the loss" in finding.title for finding in found)
