"""Three small models of different kinds: a GPT with dropout, a ConvNet with BatchNorm, an LSTM."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = (
            nn.LayerNorm(width),
            nn.MultiheadAttention(width, 2, dropout=0.1, batch_first=True),
        )
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.GELU(),
            nn.Linear(2 * width, width),
            nn.Dropout(0.2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        mask = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device), 1)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)  # type: ignore[no-any-return]


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = (
            nn.Embedding(20, 16),
            nn.Sequential(Block(16), Block(16)),
            nn.Linear(16, 20),
        )
        self.calls = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.head(self.blocks(self.embed(ids)))  # type: ignore[no-any-return]


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
        )
        self.head = nn.Linear(8, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = (
            nn.LSTM(5, 12, num_layers=2, dropout=0.3, batch_first=True),
            nn.Linear(12, 20),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    out = model(batch[0])
    return F.cross_entropy(out.flatten(0, -2), batch[1].flatten())


def _recipe(
    model: nn.Module, inputs: Callable[[], torch.Tensor], targets: Callable[[], torch.Tensor]
) -> Recipe:
    data = [(inputs(), targets()) for _ in range(5)]
    return Recipe(
        model=model,
        loss_fn=_loss,
        data=data,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    )


def gpt() -> Recipe:
    torch.manual_seed(0)
    return _recipe(
        GPT(), lambda: torch.randint(0, 20, (3, 7)), lambda: torch.randint(0, 20, (3, 7))
    )


def conv() -> Recipe:
    torch.manual_seed(0)
    return _recipe(Conv(), lambda: torch.randn(6, 1, 8, 8), lambda: torch.randint(0, 20, (6,)))


def recurrent() -> Recipe:
    torch.manual_seed(0)
    return _recipe(Recurrent(), lambda: torch.randn(4, 9, 5), lambda: torch.randint(0, 20, (4,)))


MODELS = {"gpt": gpt, "conv": conv, "lstm": recurrent}
