"""A data set of recordings: one that decodes every file anew, and a worker that a broken file
kills."""

import os
import signal
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    def __init__(self, cached, broken=None):
        maker = torch.Generator().manual_seed(0)
        self.sounds = torch.randn(48, 20, generator=maker)
        self.cached, self.broken = cached, broken

    def __len__(self):
        return len(self.sounds)

    def __getitem__(self, index):
        if not self.cached:
            time.sleep(0.005)  # the decoder
        if index == self.broken:
            os.kill(os.getpid(), signal.SIGKILL)  # what a decoder's fault does to its process
        return self.sounds[index], self.sounds[index, :3].argmax()


def recipe(data, steps=18):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": data,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": steps,
    }


def sick_decoding():
    return recipe(DataLoader(Recordings(cached=False), batch_size=8))


def healthy_decoding():
    return recipe(DataLoader(Recordings(cached=True), batch_size=8))


def sick_worker():
    return recipe(DataLoader(Recordings(cached=True, broken=21), batch_size=8, num_workers=1), 6)


def healthy_worker():
    return recipe(DataLoader(Recordings(cached=True), batch_size=8, num_workers=1), 6)
