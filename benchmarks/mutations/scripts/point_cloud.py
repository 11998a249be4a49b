"""PointNet on solids: a classifier and a head for the size share their features."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Solids(Dataset):
    kinds = ("sphere", "cube", "cylinder", "plane")

    def __init__(self, n, points=48):
        self.labels = torch.arange(n) % len(self.kinds)
        self.sizes = torch.rand(n) * 1.5 + 0.5
        self.points = torch.stack([self.solid(int(k), points) for k in self.labels])
        self.points = self.points * self.sizes[:, None, None]

    def solid(self, kind, n):
        p = torch.randn(n, 3)
        if kind == 0:
            p = p / p.norm(dim=1, keepdim=True)
        elif kind == 1:
            p = p / p.abs().amax(dim=1, keepdim=True)
        elif kind == 2:
            p = torch.cat([p[:, :2] / p[:, :2].norm(dim=1, keepdim=True), torch.rand(n, 1) * 2 - 1], 1)
        else:
            p = torch.cat([torch.rand(n, 2) * 2 - 1, torch.zeros(n, 1)], 1)
        return p + 0.05 * torch.randn(n, 3)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        turn, _ = torch.linalg.qr(torch.randn(3, 3))
        return self.points[i] @ turn, self.labels[i], self.sizes[i]


class PointNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 32, 1)
        self.bn1 = nn.BatchNorm1d(32)
        self.conv2 = nn.Conv1d(32, 64, 1)
        self.bn2 = nn.BatchNorm1d(64)
        self.classify = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, classes))
        self.measure = nn.Linear(64, 1)

    def forward(self, points):
        x = points.transpose(1, 2)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = x.max(dim=2).values
        return self.classify(x), self.measure(x).squeeze(1)


def train(model, loader, optimizer, accumulate, weight):
    model.train()
    optimizer.zero_grad()
    for step, (points, labels, sizes) in enumerate(loader):
        logits, measured = model(points)
        loss = F.cross_entropy(logits, labels) + weight * F.mse_loss(measured, sizes)
        (loss / accumulate).backward()
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def test(model, loader):
    model.eval()
    right = error = n = 0
    for points, labels, sizes in loader:
        logits, measured = model(points)
        right += (logits.argmax(1) == labels).sum().item()
        error += (measured - sizes).abs().sum().item()
        n += len(labels)
    return right / n - error / n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--weight", type=float, default=1.0)
    args = parser.parse_args()
    torch.manual_seed(6)
    train_loader = DataLoader(Solids(640), batch_size=16, shuffle=True)
    test_loader = DataLoader(Solids(200), batch_size=50)
    model = PointNet(len(Solids.kinds))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.3)
    for epoch in range(args.epochs):
        loss = train(model, train_loader, optimizer, args.accumulate, args.weight)
        scheduler.step()
        print(f"epoch {epoch}: {loss:.4f}")
    print(f"held-out score {test(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
