"""The models that are trained, with a batch each: small ones of the usual kinds, and large ones for
memory and for many modules. Imports nothing of the bench: the watched scripts have a copy of this
file as a module of their own."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

SMALL = {"mlp-0.5ms": (5, 64, 32), "mlp-2ms": (5, 256, 64), "mlp-5ms": (5, 512, 128)}
"""(layers, width, batch) of steps that take about so long on one core of a CPU."""


class Block(nn.Module):
    """A transformer's block, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.heads, -1).transpose(1, 2)
            for z in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(b, t, d))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Six layers of width 256, 64 tokens, a batch of 8."""

    def __init__(
        self, width: int = 256, layers: int = 6, vocab: int = 512, context: int = 64
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


class ConvNet(nn.Module):
    """Four convolutions of 64 channels with BatchNorm on 32×32 images, a batch of 32."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 64, 64, 64, 64]
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b in itertools.pairwise(widths)
            )
        )
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return out


class Recurrent(nn.Module):
    """A two-layer LSTM of 256 units over 64 steps, a batch of 32."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(64, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def mlp(width: int, layers: int) -> nn.Sequential:
    """Linear layers with ReLU, for the small steps; the last of 10 units."""
    body = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*body, nn.Linear(width, 10))


def many_tensors(pairs: int) -> nn.Sequential:
    """So many layers of two small tensors each."""
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(pairs)), nn.Linear(8, 10))


class Residual(nn.Module):
    """One layer of the deep models whose gradient flow is followed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * torch.tanh(self.linear(x))


class ManyModules(nn.Module):
    """Blocks of ten modules each, nine of them without parameters: what is done for every module
    at every step shows here."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), *(nn.Identity() for _ in range(7)), nn.Tanh())
            for _ in range(blocks)
        )
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + 0.01 * block(x)
        out: torch.Tensor = self.head(x)
        return out


Made = tuple[nn.Module, torch.Tensor, torch.Tensor]


def made(name: str, device: torch.device) -> Made:
    """One of `benchmarks.recipes.MODELS` on `device`: (model, inputs, labels)."""
    torch.manual_seed(0)
    model: nn.Module
    if name == "gpt-amp" and device.type == "cpu":
        # float16 is slow there: two layers of 128, 4×32 tokens
        model = GPT(width=128, layers=2, vocab=256, context=32)
        x, y = torch.randint(0, 256, (4, 32)), torch.randint(0, 256, (4, 32))
    elif name in ("gpt", "gpt-amp"):
        model = GPT()
        x, y = torch.randint(0, 512, (8, 64)), torch.randint(0, 512, (8, 64))
    elif name == "conv":
        model = ConvNet()
        x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    elif name in SMALL:
        layers, width, size = SMALL[name]
        model = mlp(width, layers)
        x, y = torch.randn(size, width), torch.randint(0, 10, (size,))
    elif name == "3000-tensors":
        model = many_tensors(1499)
        x, y = torch.randn(8, 8), torch.randint(0, 10, (8,))
    elif name == "20000-modules":
        model = ManyModules(2000)
        x, y = torch.randn(8, 8), torch.randint(0, 10, (8,))
    elif name == "500mb-adam":
        model = mlp(4096, 9)  # 8 layers of 64 MiB
        x, y = torch.randn(16, 4096), torch.randint(0, 10, (16,))
    else:
        model = Recurrent()
        x, y = torch.randn(32, 64, 64), torch.randint(0, 10, (32,))
    return model.to(device), x.to(device), y.to(device)
