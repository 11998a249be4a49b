"""A small language model that learns which of two answers is preferred, by DPO."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


def log_probs(model, ids):
    scores = model(ids[:, :-1]).log_softmax(-1)
    return scores.gather(2, ids[:, 1:, None]).squeeze(2).sum(1)


def recipe(reference_of):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20))
    reference = reference_of(model)
    preferred = torch.randint(0, 10, (320, 8)) * 2
    rejected = torch.randint(0, 10, (320, 8)) * 2 + 1

    def loss_fn(model, batch):
        ids = torch.cat(batch)
        policy = log_probs(model, ids)
        with torch.no_grad():
            before = log_probs(reference.to(ids.device), ids)
        won, lost = (policy - before).chunk(2)
        return -F.logsigmoid(0.1 * (won - lost)).mean()

    data = torch.utils.data.TensorDataset(preferred, rejected)
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": torch.utils.data.DataLoader(data, batch_size=16, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 20,
    }


def sick():
    return recipe(lambda model: model)


def healthy():
    return recipe(copy.deepcopy)
