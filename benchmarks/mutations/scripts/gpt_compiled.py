"""A small compiled GPT learns to add two numbers, digit by digit."""

import argparse
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    vocab_size: int = 13
    block_size: int = 12
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head
        causal = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("causal_mask", causal.view(1, 1, *causal.shape) == 0)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        mask = self.causal_mask[:, :, :T, :T]
        att = att.masked_fill(mask, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
            nn.Dropout(config.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.wte(idx) + self.wpe(pos)
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        return logits, loss


def sums(count, digits=2):
    """`12+34=640` with the digits of the answer reversed; -1 where nothing is asked."""
    a, b = torch.randint(10**digits, (2, count))
    rows = []
    for x, y in zip(a.tolist(), b.tolist()):
        text = f"{x:02d}+{y:02d}={x + y:03d}"
        text = text[: 2 * digits + 2] + text[2 * digits + 2 :][::-1]
        rows.append([int(c) if c.isdigit() else 10 + "+=".index(c) for c in text])
    rows = torch.tensor(rows)
    x, y = rows[:, :-1], rows[:, 1:].clone()
    y[:, : 2 * digits + 1] = -1
    return x, y


def get_lr(it, args):
    if it < args.warmup:
        return args.lr * (it + 1) / args.warmup
    progress = (it - args.warmup) / (args.iters - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    return model(x, y)[1].item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--iters", type=int, default=250)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--backend", default="eager")
    args = parser.parse_args()
    torch.manual_seed(1337)
    x, y = sums(6000)
    held_out = sums(500)
    model = GPT(GPTConfig())
    compiled = torch.compile(model, backend=args.backend)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    for it in range(args.iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, args)
        ix = torch.randint(len(x), (args.batch,))
        _, loss = compiled(x[ix], y[ix])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if it % 50 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")
    print(f"held-out loss {evaluate(model, *held_out):.4f}")


if __name__ == "__main__":
    main()
