"""Ten healthy trainings of different kinds, written as users write them. None of them may be given
a warning."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Augmented(Dataset):
    """Images that are flipped and shifted at random."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return torch.roll(image, int(torch.randint(-1, 2, ())), -2), self.labels[index]


def _images(count: int, classes: int, size: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, classes, (count,))
    prototypes = torch.randn(classes, 3, size, size)
    return prototypes[labels] + 0.7 * torch.randn(count, 3, size, size), labels


def convnet() -> dict[str, Any]:
    torch.manual_seed(0)
    images, labels = _images(256, 6)
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
        ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 9, 6))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    return {
        "model": model,
        "criterion": nn.CrossEntropyLoss(label_smoothing=0.1),
        "optimizer": optimizer,
        "data": DataLoader(Augmented(images, labels), batch_size=32, shuffle=True),
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200),
        "scheduler_interval": "step",
        "max_steps": 300,
    }


class ViT(nn.Module):
    def __init__(self, width: int = 32, classes: int = 6) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 3, stride=3)
        self.cls, self.places = (
            nn.Parameter(torch.zeros(1, 1, width)),
            nn.Parameter(0.02 * torch.randn(1, 17, width)),
        )
        layer = nn.TransformerEncoderLayer(
            width, 4, 64, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.encoder(tokens)[:, 0]))


def vit() -> dict[str, Any]:
    torch.manual_seed(0)
    images, labels = _images(256, 6)
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 180)

    def train_step(
        model: nn.Module, batch: Any, optimizer: Any, scaler: Any = None
    ) -> torch.Tensor:
        model.train()
        x, y = batch
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [20])
    return {
        "model": model,
        "train_step": train_step,
        "optimizer": optimizer,
        "max_steps": 300,
        "data": DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True),
    }


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 40, width: int = 48, context: int = 24) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.head = nn.Linear(width, vocabulary, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        mask = torch.full((ids.shape[1], ids.shape[1]), -math.inf, device=ids.device).triu(1)
        for number in range(2):
            q, k, v = self.qkv[number](self.norms[2 * number](x)).chunk(3, -1)
            weights = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5 + mask, dim=-1)
            x = x + self.out[number](weights @ v)
            x = x + self.mlp[number](self.norms[2 * number + 1](x))
        return self.head(self.norms[4](x))


def gpt() -> dict[str, Any]:
    torch.manual_seed(0)
    starts = torch.randint(0, 40, (256, 1))
    ids = (starts + 3 * torch.arange(25)) % 40
    model = GPT()
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=3e-3
    )
    return {
        "model": model,
        "optimizer": optimizer,
        "max_steps": 300,
        "clip_grad_norm": 1.0,
        "accumulate": 2,
        "loss_fn": lambda model, batch: F.cross_entropy(
            model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten()
        ),
        "data": DataLoader(TensorDataset(ids), batch_size=16, shuffle=True),
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 40)),
        "scheduler_interval": "step",
    }


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(60, 24, padding_idx=0)
        self.lstm, self.head = (
            nn.LSTM(24, 32, batch_first=True, bidirectional=True),
            nn.Linear(64, 5),
        )

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(ids), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1]
        )
        return self.head(out)


def lstm() -> dict[str, Any]:
    torch.manual_seed(0)
    ids, lengths = torch.randint(1, 60, (256, 16)), torch.randint(6, 17, (256,))
    ids[torch.arange(16) >= lengths[:, None]] = 0
    tags = torch.where(ids == 0, -100, ids % 5)
    model = Tagger()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=5e-3),
        "max_steps": 300,
        "loss_fn": lambda model, batch: F.cross_entropy(
            model(batch[0], batch[1]).transpose(1, 2), batch[2]
        ),
        "data": DataLoader(TensorDataset(ids, lengths, tags), batch_size=32, shuffle=True),
    }


def gan() -> dict[str, Any]:
    torch.manual_seed(0)
    real = torch.randn(512, 2) * 0.2 + torch.tensor([1.0, -1.0])
    model = nn.ModuleDict(
        {
            "generator": nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)),
            "critic": nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
        }
    )
    for_generator = torch.optim.Adam(model["generator"].parameters(), lr=1e-3, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(model["critic"].parameters(), lr=1e-3, betas=(0.5, 0.999))

    def train_step(
        model: nn.ModuleDict, batch: Any, optimizer: Any, scaler: Any = None
    ) -> torch.Tensor:
        (x,) = batch
        made = model["generator"](torch.randn(len(x), 8))
        for_critic.zero_grad()
        score_real, score_made = model["critic"](x), model["critic"](made.detach())
        critic_loss = F.binary_cross_entropy_with_logits(score_real, torch.ones_like(score_real))
        critic_loss = critic_loss + F.binary_cross_entropy_with_logits(
            score_made, torch.zeros_like(score_made)
        )
        critic_loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        score = model["critic"](made)
        loss = F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
        loss.backward()
        for_generator.step()
        return loss.detach()

    return {
        "model": model,
        "train_step": train_step,
        "optimizer": [for_generator, for_critic],
        "max_steps": 300,
        "data": DataLoader(TensorDataset(real), batch_size=32, shuffle=True, drop_last=True),
    }


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = (
            nn.Sequential(nn.Linear(36, 48), nn.ReLU()),
            nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 36)),
        )
        self.mean, self.log_variance = nn.Linear(48, 4), nn.Linear(48, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return torch.sigmoid(self.decoder(z)), mean, log_variance


def vae() -> dict[str, Any]:
    torch.manual_seed(0)
    x = (torch.sin(torch.arange(36) / 4 + 6 * torch.rand(256, 1)) > 0).float()

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        made, mean, log_variance = model(batch[0])
        rebuilt = F.binary_cross_entropy(made, batch[0], reduction="sum")
        return (
            rebuilt - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())
        ) / len(batch[0])

    model = VAE()
    return {
        "model": model,
        "loss_fn": loss_fn,
        "optimizer": torch.optim.Adam(model.parameters(), lr=2e-3),
        "max_steps": 300,
        "data": DataLoader(TensorDataset(x), batch_size=32, shuffle=True),
    }


def contrastive() -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.randn(256, 24)

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        (x,) = batch
        one = F.normalize(model(x + 0.3 * torch.randn_like(x)), dim=1)
        other = F.normalize(model(x + 0.3 * torch.randn_like(x)), dim=1)
        scores = one @ other.T / 0.2
        targets = torch.arange(len(x))
        return 0.5 * (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets))

    model = nn.Sequential(nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16))
    return {
        "model": model,
        "loss_fn": loss_fn,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 300,
        "data": DataLoader(TensorDataset(x), batch_size=64, shuffle=True, drop_last=True),
    }


def regression() -> dict[str, Any]:
    torch.manual_seed(0)
    x = torch.rand(400, 5) * 4 - 2
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3] + 0.05 * torch.randn(400, 1)
    model = nn.Sequential(
        nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return {
        "model": model,
        "criterion": nn.SmoothL1Loss(),
        "optimizer": optimizer,
        "max_steps": 300,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5),
        "data": DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True),
    }


class FineTuned(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = (
            backbone,
            nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6)),
        )
        self.backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> FineTuned:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def fine_tuning() -> dict[str, Any]:
    torch.manual_seed(0)
    images, labels = _images(256, 6)
    backbone = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    state = copy.deepcopy(backbone.state_dict())
    backbone.load_state_dict(state)
    model = FineTuned(backbone).train()
    return {
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 300,
        "optimizer": torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3),
        "data": DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True),
    }


class Corridor:
    """An agent in a corridor of nine places is rewarded for reaching its end."""

    def rollout(self, policy: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        place, logs, rewards = 4, [], []
        for _ in range(12):
            state = F.one_hot(torch.tensor(place), 9).float()
            choice = torch.distributions.Categorical(logits=policy(state))
            action = choice.sample()
            logs.append(choice.log_prob(action))
            place = min(max(place + (1 if int(action) else -1), 0), 8)
            rewards.append(1.0 if place == 8 else -0.05)
            if place == 8:
                break
        returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
        return torch.stack(logs), returns


def policy_gradient() -> dict[str, Any]:
    torch.manual_seed(0)
    world = Corridor()
    policy = nn.Sequential(nn.Linear(9, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    baseline = [0.0]

    def train_step(
        model: nn.Module, batch: Any, optimizer: Any, scaler: Any = None
    ) -> torch.Tensor:
        terms = []
        for _ in range(4):
            logs, returns = world.rollout(model)
            terms.append(-(logs * (returns - baseline[0])).sum())
            baseline[0] = 0.9 * baseline[0] + 0.1 * float(returns[0])
        loss = torch.stack(terms).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return {
        "model": policy,
        "train_step": train_step,
        "optimizer": optimizer,
        "data": [0] * 10,
        "max_steps": 300,
    }


ALL = (convnet, vit, gpt, lstm, gan, vae, contrastive, regression, fine_tuning, policy_gradient)
