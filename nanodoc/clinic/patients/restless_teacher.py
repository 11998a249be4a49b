"""A student that learns what a teacher with dropout says."""

import torch
import torch.nn.functional as F
from torch import nn


def classifier():
    return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 4))


def recipe(prepared):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    student, teacher = classifier(), prepared(classifier())

    def train_step(model, batch, optimizer, scaler=None):
        optimizer.zero_grad()
        with torch.no_grad():
            wanted = teacher.to(batch[0].device)(batch[0])
        scores = model(batch[0])
        loss = F.cross_entropy(scores, batch[1]) + 0.1 * F.mse_loss(scores, wanted)
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": student,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9),
        "max_steps": 32,
    }


def sick():
    return recipe(lambda teacher: teacher)


def healthy():
    return recipe(lambda teacher: teacher.eval())
