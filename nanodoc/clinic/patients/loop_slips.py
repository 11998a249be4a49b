"""One loop, six slips: gradients cleared before they are used, micro-batches summed, a clip after
the step, an optimizer made in every step, no step at all, and no backward."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(train_step):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "max_steps": 32,
    }


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def usual(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def clears_too_late(model, batch, optimizer, scaler=None):
    loss = loss_of(model, *batch)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    return loss


def sums(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        loss = loss_of(model, x, y)
        loss.backward()
    optimizer.step()
    return loss


def averages(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    for x, y in zip(batch[0].split(4), batch[1].split(4), strict=True):
        loss = loss_of(model, x, y)
        (loss / 8).backward()
    optimizer.step()
    return loss


def clips_too_late(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    optimizer.step()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


def begins_anew(model, batch, optimizer, scaler=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    optimizer.step()
    return loss


def never_steps(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    loss.backward()
    return loss


def sick_cleared():
    return recipe(clears_too_late)


def healthy_cleared():
    return recipe(usual)


def sick_summed():
    return recipe(sums)


def healthy_summed():
    return recipe(averages)


def sick_clipped():
    return recipe(clips_too_late)


def healthy_clipped():
    return recipe(usual)


def sick_anew():
    return recipe(begins_anew)


def healthy_anew():
    return recipe(usual)


def never_differentiates(model, batch, optimizer, scaler=None):
    optimizer.zero_grad()
    loss = loss_of(model, *batch)
    optimizer.step()
    return loss


def sick_stepless():
    return recipe(never_steps)


def healthy_stepless():
    return recipe(usual)


def sick_undifferentiated():
    return recipe(never_differentiates)


def healthy_undifferentiated():
    return recipe(usual)
