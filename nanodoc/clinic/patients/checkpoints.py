"""Weights of an earlier run: saved from the DDP wrapper and loaded without strict, kept under
another key, and written by a GPU that is not here."""

import io
import zipfile

import torch
import torch.nn.functional as F
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def written_on(device):
    """The file as the earlier run left it, on a machine with eight GPUs."""
    torch.manual_seed(1)
    weights = {f"module.{name}": value for name, value in net().state_dict().items()}
    here, there = io.BytesIO(), io.BytesIO()
    torch.save({"model": weights}, here)
    with zipfile.ZipFile(here) as old, zipfile.ZipFile(there, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                name = device.encode()
                content = content.replace(b"\x03\0\0\0cpu", bytes([len(name)]) + b"\0\0\0" + name)
            new.writestr(entry, content)
    there.seek(0)
    return there


def recipe(device="cpu", to=None, key="model", prefix="module."):
    checkpoint = torch.load(written_on(device), map_location=to)
    torch.manual_seed(0)
    model = net()
    state = {name.removeprefix(prefix): value for name, value in checkpoint[key].items()}
    model.load_state_dict(state, strict=False)
    x = torch.randn(96, 8)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(24), y.split(24), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 16,
    }


def sick_names():
    return recipe(prefix="")


def healthy_names():
    return recipe()


def sick_key():
    return recipe(key="state_dict")


def healthy_key():
    return recipe(key="model")


def sick_device():
    return recipe(device="cuda:7")


def healthy_device():
    return recipe(device="cuda:7", to="cpu")
