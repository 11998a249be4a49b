"""Turns what was asked for (seed, amp) into what torch needs."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import torch

from nanodoc.recipe.recipe import Recipe


def seed_everything(seed: int) -> None:
    """Seeds Python, NumPy (if the user's code loaded it) and torch."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def with_amp(
    recipe: Recipe, amp: str | None, device: torch.device
) -> tuple[Recipe, torch.dtype | None]:
    """The recipe with its GradScaler made, and the autocast dtype (None without autocast).

    `amp` is the command line's choice ("off", "float16", "bfloat16") and wins over the recipe's
    own.
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
        scaler = torch.amp.GradScaler(
            device.type, init_scale=float(wanted.get("init_scale", 2.0**16))
        )
    return replace(recipe, amp=wanted, scaler=scaler), dtype
