"""What `nanodoc replay` can change of a step: options, attributes, dtype, samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nanodoc.errors import UsageError
from nanodoc.experiments.samples import part
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import batch_size, map_tensors


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with options such as "optimizer.lr=1e-4", "clip_grad_norm=1" or
    "model.blocks.0.eps=1e-5" set. Raises `UsageError`."""
    for setting in settings:
        key, sign, text = setting.partition("=")
        try:
            value = float(text)
        except ValueError:
            sign = ""
        if not sign:
            raise UsageError(f"--set {setting!r}: write KEY=NUMBER, such as optimizer.lr=1e-4")
        key = key.strip()
        at = re.fullmatch(r"optimizer(?:\[(\d+)\])?\.(\w+)", key)
        if key == "clip_grad_norm":
            recipe = replace(recipe, clip_grad_norm=value)
        elif at is not None:
            _set_option(recipe, int(at[1]) if at[1] else None, at[2], value, setting)
        elif key.startswith("model."):
            _set_attribute(recipe.model, key.removeprefix("model."), value, setting)
        else:
            raise UsageError(
                f"--set {setting!r}: it takes optimizer.OPTION, optimizer[N].OPTION, "
                "clip_grad_norm and model.MODULE.ATTRIBUTE"
            )
    return recipe


def _set_option(recipe: Recipe, number: int | None, name: str, value: float, setting: str) -> None:
    if number is not None and number >= len(recipe.optimizers):
        raise UsageError(
            f"--set {setting!r}: the recipe has {len(recipe.optimizers)} optimizers, numbered "
            "from 0"
        )
    groups = [
        g for i, o in enumerate(recipe.optimizers) if number in (None, i) for g in o.param_groups
    ]
    known = [group for group in groups if isinstance(group.get(name), (int, float))]
    if not known:
        words = sorted(
            {key for group in groups for key, old in group.items() if isinstance(old, (int, float))}
        )
        raise UsageError(
            f"--set {setting!r}: no optimizer has the option {name!r}; there are "
            f"{', '.join(words) or 'none'}"
        )
    for group in known:
        group[name] = value


def _set_attribute(model: torch.nn.Module, key: str, value: float, setting: str) -> None:
    path, _, name = key.rpartition(".")
    module = dict(model.named_modules()).get(path)
    old = vars(module).get(name) if module is not None else None
    if not isinstance(old, (bool, int, float)):
        raise UsageError(f"--set {setting!r}: the model has no number {key!r}")
    setattr(module, name, type(old)(value))


def only(capsule: StepState, samples: Sequence[int]) -> StepState:
    """The step with these samples only. Raises `UsageError`."""
    if not samples:
        return capsule
    size = batch_size(capsule.batches[0]) if len(capsule.batches) == 1 else None
    if size is None:
        raise UsageError("--samples: this step's batch has no sample dimension")
    if any(not 0 <= row < size for row in samples):
        raise UsageError(f"--samples: the batch has {size} samples, numbered from 0")
    return part(capsule, list(samples))


def cast(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with its floating tensors in another dtype."""
    return map_tensors(
        batch, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor
    )
