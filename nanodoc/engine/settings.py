"""Turns what was asked for (device, seed, amp) into what torch needs; each impossible wish is one clear line."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError
from nanodoc.recipe.recipe import Recipe


def pick_device(name: str) -> torch.device:
    """The device for "auto", "cpu", "cuda" or "cuda:N". Raises `UsageError` when it isn't there."""
    if name == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device {name!r} is not auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"--device {name}: this torch ({torch.__version__}) sees no CUDA device; use --device cpu")
        if device.index is not None and device.index >= torch.cuda.device_count():
            raise UsageError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices, numbered from 0")
        if device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
    return device


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy (if the user's code loaded it) and torch."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def with_amp(recipe: Recipe, amp: str | None, device: torch.device) -> tuple[Recipe, torch.dtype | None]:
    """The recipe with its GradScaler made, and the autocast dtype (None without autocast).

    `amp` is the command line's choice ("off", "float16", "bfloat16") and wins over the recipe's own.
    """
    wanted: dict[str, Any] | None = dict(recipe.amp) if recipe.amp is not None else None
    if amp == "off":
        return replace(recipe, amp=None, scaler=None), None
    if amp is not None:
        wanted = {**(wanted or {}), "dtype": amp}
        wanted.setdefault("scaler", amp == "float16")
    if wanted is None:
        return recipe, None
    dtype = getattr(torch, str(wanted.get("dtype", "float16")).removeprefix("torch."))
    scaler = recipe.scaler
    if scaler is None and wanted.get("scaler"):
        scaler = torch.amp.GradScaler(device.type, init_scale=float(wanted.get("init_scale", 2.0**16)))
    return replace(recipe, amp=wanted, scaler=scaler), dtype
