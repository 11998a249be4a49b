"""One-stage detector: a grid of cells, each with objectness, a box and a class."""
import argparse

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--box-weight", type=float, default=5.0)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

GRID, CELL, CLASSES = 4, 8, 3
torch.manual_seed(0)


def scenes(n):
    """Each picture holds one rectangle; its colour channel is its class."""
    pictures = torch.randn(n, 3, GRID * CELL, GRID * CELL) * 0.2
    centers = torch.rand(n, 2) * 20 + 6
    sizes = torch.rand(n, 2) * 6 + 5
    labels = torch.randint(CLASSES, (n,))
    for i in range(n):
        (cy, cx), (h, w) = centers[i].tolist(), sizes[i].tolist()
        top, left = max(0, int(cy - h / 2)), max(0, int(cx - w / 2))
        pictures[i, labels[i], top : int(cy + h / 2), left : int(cx + w / 2)] += 1.0
    return pictures, torch.cat([centers, sizes], dim=1), labels


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.head = nn.Conv2d(32, 1 + 4 + CLASSES, 3, stride=2, padding=1)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.norm(self.conv2(x)))
        x = F.relu(self.conv3(x))
        return self.head(x).permute(0, 2, 3, 1)  # batch, row, column, values


def responsible(boxes):
    rows = (boxes[:, 0] // CELL).long().clamp(0, GRID - 1)
    cols = (boxes[:, 1] // CELL).long().clamp(0, GRID - 1)
    return rows, cols


def detection_loss(out, boxes, labels):
    rows, cols = responsible(boxes)
    index = torch.arange(len(out))
    objectness = torch.zeros(out.shape[:3])
    objectness[index, rows, cols] = 1.0
    found = out[index, rows, cols]
    offset = torch.stack([boxes[:, 0] / CELL - rows, boxes[:, 1] / CELL - cols], dim=1)
    box_target = torch.cat([offset, (boxes[:, 2:] / CELL).log()], dim=1)
    obj_loss = F.binary_cross_entropy_with_logits(out[..., 0], objectness)
    box_loss = F.smooth_l1_loss(found[:, 1:5], box_target)
    cls_loss = F.cross_entropy(found[:, 5:], labels)
    return obj_loss + args.box_weight * box_loss + cls_loss


def decode(out):
    best = out[..., 0].flatten(1).argmax(1)
    rows, cols = best // GRID, best % GRID
    found = out[torch.arange(len(out)), rows, cols]
    center = (torch.stack([rows, cols], 1) + found[:, 1:3]) * CELL
    return torch.cat([center, found[:, 3:5].exp() * CELL], 1), found[:, 5:].argmax(1)


@torch.no_grad()
def evaluate(model, pictures, boxes, labels):
    model.eval()
    guess, classes = decode(model(pictures))
    low = torch.maximum(guess[:, :2] - guess[:, 2:] / 2, boxes[:, :2] - boxes[:, 2:] / 2)
    high = torch.minimum(guess[:, :2] + guess[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2)
    overlap = (high - low).clamp(min=0).prod(1)
    union = guess[:, 2:].prod(1) + boxes[:, 2:].prod(1) - overlap
    return ((overlap / union) * (classes == labels)).mean().item()


pictures, boxes, labels = scenes(512)
test_set = scenes(128)
model = Detector()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
for epoch in range(args.epochs):
    model.train()
    order = torch.randperm(len(pictures))
    for batch in order.split(args.batch_size):
        optimizer.zero_grad()
        loss = detection_loss(model(pictures[batch]), boxes[batch], labels[batch])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
    print("epoch", epoch, "loss", round(loss.item(), 4))
print("held-out score %.4f" % evaluate(model, *test_set))
