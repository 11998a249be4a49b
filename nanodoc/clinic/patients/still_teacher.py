"""A student that is kept near a teacher, which is the moving average of the student."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def rebinds(teacher, student):
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow = 0.99 * slow + 0.01 * fast


def writes(teacher, student):
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.lerp_(fast, 0.01)


def recipe(follow):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    student = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    teacher = copy.deepcopy(student)

    def train_step(model, batch, optimizer, scaler=None):
        teacher.to(batch[0].device)
        optimizer.zero_grad()
        scores = model(batch[0])
        with torch.no_grad():
            wanted = teacher(batch[0])
        loss = F.cross_entropy(scores, batch[1]) + 0.1 * F.mse_loss(scores, wanted)
        loss.backward()
        optimizer.step()
        follow(teacher, model)
        return loss

    return {
        "model": student,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9),
        "max_steps": 32,
    }


def sick():
    return recipe(rebinds)


def healthy():
    return recipe(writes)
