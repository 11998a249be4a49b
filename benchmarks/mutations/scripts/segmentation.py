"""A small U-Net finds ellipses in noisy pictures."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

SIZE = 32


def make_pictures(count, generator):
    ys, xs = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    center = torch.rand(count, 2, 1, 1, generator=generator) * 16 + 8
    radius = torch.rand(count, 2, 1, 1, generator=generator) * 5 + 3
    inside = ((ys - center[:, 0]) / radius[:, 0]) ** 2 + ((xs - center[:, 1]) / radius[:, 1]) ** 2
    masks = (inside < 1).float().unsqueeze(1)
    noise = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    images = 120 + 40 * masks + 30 * noise
    return images, masks


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = block(1, width)
        self.down2 = block(width, 2 * width)
        self.bottom = block(2 * width, 2 * width)
        self.up1 = block(4 * width, width)
        self.up2 = block(2 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.up1(torch.cat([x, second], dim=1))
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.up2(torch.cat([x, first], dim=1))
        return self.head(x)


def dice_loss(logits, masks):
    probabilities = logits.sigmoid()
    overlap = (probabilities * masks).sum(dim=(1, 2, 3))
    total = probabilities.sum(dim=(1, 2, 3)) + masks.sum(dim=(1, 2, 3))
    return 1 - ((2 * overlap + 1.0) / (total + 1.0)).mean()


def evaluate(model, loader, mean, std):
    model.eval()
    overlap = union = 0.0
    with torch.no_grad():
        for images, masks in loader:
            predicted = model((images - mean) / std) > 0
            overlap += (predicted & (masks > 0)).sum().item()
            union += (predicted | (masks > 0)).sum().item()
    return overlap / union


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    images, masks = make_pictures(320, generator)
    mean, std = images.mean(), images.std()
    train_loader = DataLoader(TensorDataset(images, masks), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(*make_pictures(96, generator)), batch_size=32)

    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for epoch in range(3):
        model.train()
        running = 0.0
        for images, masks in train_loader:
            images = (images - mean) / std
            logits = model(images)
            loss = F.binary_cross_entropy_with_logits(logits, masks) + dice_loss(logits, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f}")
    print(f"held-out IoU {evaluate(model, val_loader, mean, std):.4f}")


if __name__ == "__main__":
    main()
