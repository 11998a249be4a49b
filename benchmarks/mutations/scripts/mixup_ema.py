"""Image classifier with mixup, label smoothing, a warm-up schedule and averaged weights."""

import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

CLASSES = 6


class Shapes(Dataset):
    """Blobs whose arrangement is the class; the brightness tells nothing."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        places = np.random.default_rng(0).integers(3, 21, (CLASSES, 3, 2))
        self.targets = np.sort(rng.integers(0, CLASSES, count))
        images = rng.normal(0, 25, (count, 24, 24)) + rng.uniform(60, 120, (count, 1, 1))
        for image, target in zip(images, self.targets):
            for row, col in places[target] + rng.integers(-2, 3, (3, 2)):
                image[max(0, row - 2) : row + 2, max(0, col - 2) : col + 2] += 55
        self.images = images.clip(0, 255).astype(np.float32)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        image = torch.from_numpy(self.images[index]).unsqueeze(0)
        return (image - 95.0) / STD, int(self.targets[index])


STD = 45.0


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(x + out)


class Classifier(nn.Module):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.layers = nn.Sequential(*[Residual(width) for _ in range(depth)])
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width * 9, CLASSES)

    def forward(self, x):
        x = self.layers(self.stem(x))
        x = F.avg_pool2d(x, 4)
        x = x.flatten(1)
        return self.head(self.dropout(x))


class EMA:
    def __init__(self, model, decay=0.97):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for average, value in zip(self.shadow.parameters(), model.parameters()):
            average.mul_(self.decay).add_(value, alpha=1 - self.decay)
        for average, value in zip(self.shadow.buffers(), model.buffers()):
            average.copy_(value)


def mixup(images, targets, alpha, rng):
    lam = float(rng.beta(alpha, alpha))
    order = torch.randperm(len(images))
    return lam * images + (1 - lam) * images[order], targets, targets[order], lam


def train(model, ema, loader, epochs, rng):
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    total, warmup = epochs * len(loader), len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / warmup, 0.5 * (1 + math.cos(math.pi * min(1.0, s / total)))),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(epochs):
        model.train()
        for images, targets in loader:
            mixed, first, second, lam = mixup(images, targets, 0.2, rng)
            output = model(mixed)
            loss = lam * criterion(output, first) + (1 - lam) * criterion(output, second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update(model)
        print(f"epoch {epoch} loss {loss.item():.3f}")


def validate(model, loader):
    correct = total = 0
    with torch.no_grad():
        for images, targets in loader:
            correct += (model(images).argmax(1) == targets).sum().item()
            total += len(targets)
    return correct / total


if __name__ == "__main__":
    torch.manual_seed(0)
    train_loader = DataLoader(Shapes(480, 1), batch_size=24, shuffle=True)
    val_loader = DataLoader(Shapes(240, 2), batch_size=60)
    model = Classifier()
    ema = EMA(model)
    train(model, ema, train_loader, epochs=6, rng=np.random.default_rng(3))
    print(f"held-out accuracy {validate(ema.shadow, val_loader):.4f}")
