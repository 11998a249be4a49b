"""Turns what `build()` returned into a `Recipe`, or says in one line why it can't."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import torch

from nanodoc.errors import UsageError
from nanodoc.recipe.recipe import Recipe

ACCEPTED = (
    'a dict {"model", "loss_fn" (or "criterion" or "train_step"), "data", "optimizer", ...}, '
    "a nanodoc.Recipe, a dataclass with those fields, or a tuple (model, loss_fn, data[, "
    "optimizer])"
)
_FIELDS = [field.name for field in dataclasses.fields(Recipe)]
_TUPLE = ("model", "loss_fn", "data", "optimizer")
_WAYS_TO_A_LOSS = ("loss_fn", "criterion", "train_step")


def as_recipe(value: Any, name: str) -> Recipe:
    """The `Recipe` that `value`, returned by the entrypoint `name`, stands for. Raises
    `UsageError`."""
    if isinstance(value, Recipe):
        fields = {field: getattr(value, field) for field in _FIELDS}
    elif isinstance(value, Mapping):
        fields = dict(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple) and len(value) in (3, 4):
        fields = dict(zip(_TUPLE, value, strict=False))
    else:
        raise UsageError(f"{name}() returned {_described(value)}; return {ACCEPTED}")
    for key in fields:
        if key not in _FIELDS:
            near = get_close_matches(str(key), _FIELDS, 1, cutoff=0)
            raise UsageError(f"{name}() returned an unknown key {key!r}; did you mean {near[0]!r}?")
    _check(fields, name)
    return Recipe(**fields)


def _described(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, (tuple, list)):
        return (
            f"a {type(value).__name__} of {len(value)} "
            f"({', '.join(type(item).__name__ for item in value[:5])})"
        )
    return f"a {type(value).__name__}"


def _check(fields: dict[str, Any], name: str) -> None:
    """Each contract of `Recipe`, said of the one field that breaks it. Puts the fields that may be
    written in several ways into the recipe's own."""
    if fields.get("amp") is False:
        fields["amp"] = None
    for key in ("accumulate", "scheduler_interval"):
        if fields.get(key, 0) is None:
            del fields[key]
    _check_model_and_data(fields, name)
    _check_way_to_a_loss(fields, name)
    _check_optimizers(fields, name)
    _check_numbers(fields, name)
    _check_helpers(fields, name)
    if fields.get("scheduler_interval", "epoch") not in ("epoch", "step"):
        raise UsageError(
            f"{name}() returned scheduler_interval={fields['scheduler_interval']!r}; it must be "
            '"epoch" or "step"'
        )
    _check_amp(fields, name)


def _refusal(fields: dict[str, Any], name: str, key: str, wanted: str) -> UsageError:
    """The error that says of the field `key` what it is and what is `wanted`."""
    return UsageError(
        f"{name}() returned {key}={_described(fields.get(key))}; {key} must be {wanted}"
    )


def _check_model_and_data(fields: dict[str, Any], name: str) -> None:
    if not isinstance(fields.get("model"), torch.nn.Module):
        raise _refusal(fields, name, "model", "a torch.nn.Module")
    if not isinstance(fields.get("data"), Iterable):
        wanted = "an iterable of batches, such as a DataLoader or a list"
        raise _refusal(fields, name, "data", wanted)


def _check_way_to_a_loss(fields: dict[str, Any], name: str) -> None:
    if not any(fields.get(key) is not None for key in _WAYS_TO_A_LOSS):
        raise UsageError(f'{name}() returned no loss; give "loss_fn", "criterion" or "train_step"')
    for key in _WAYS_TO_A_LOSS:
        if fields.get(key) is not None and not callable(fields[key]):
            raise _refusal(fields, name, key, "callable")


def _check_optimizers(fields: dict[str, Any], name: str) -> None:
    """Optimizers by name become a list."""
    found = fields.get("optimizer")
    if isinstance(found, Mapping):
        found = fields["optimizer"] = list(found.values())
    for optimizer in found if isinstance(found, (list, tuple)) else [found]:
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            wanted = "a torch.optim.Optimizer or a list of them"
            raise _refusal(fields, name, "optimizer", wanted)


def _check_numbers(fields: dict[str, Any], name: str) -> None:
    for key in ("max_steps", "accumulate"):
        number = fields.get(key)
        if number is not None and (
            not isinstance(number, int) or isinstance(number, bool) or number < 1
        ):
            raise UsageError(
                f"{name}() returned {key}={number!r}; {key} must be a whole number of at least 1"
            )


def _check_helpers(fields: dict[str, Any], name: str) -> None:
    """The scaler, the schedulers and the clip are used by what they can do: many write their
    own."""
    scaler, clip = fields.get("scaler"), fields.get("clip_grad_norm")
    if scaler is not None and not all(
        callable(getattr(scaler, method, None)) for method in ("scale", "step", "update")
    ):
        raise _refusal(fields, name, "scaler", "a torch.amp.GradScaler")
    schedulers = fields.get("scheduler")
    for scheduler in schedulers if isinstance(schedulers, (list, tuple)) else [schedulers]:
        if scheduler is not None and not callable(getattr(scheduler, "step", None)):
            wanted = "a scheduler of torch.optim.lr_scheduler or a list of them"
            raise _refusal(fields, name, "scheduler", wanted)
    if clip is not None and (
        not isinstance(clip, (int, float)) or isinstance(clip, bool) or not clip > 0
    ):
        raise _refusal(fields, name, "clip_grad_norm", "a number above 0")


def _check_amp(fields: dict[str, Any], name: str) -> None:
    amp = fields.get("amp")
    if amp is None:
        return
    if not isinstance(amp, Mapping):
        raise _refusal(fields, name, "amp", 'a dict like {"dtype": "float16", "scaler": True}')
    unknown = set(amp) - {"dtype", "scaler", "init_scale"}
    if unknown:
        raise UsageError(
            f'{name}() returned amp with an unknown key {min(unknown)!r}; it takes "dtype", '
            '"scaler" and "init_scale"'
        )
    dtype = str(amp.get("dtype", "float16")).removeprefix("torch.")
    if dtype not in ("float16", "bfloat16"):
        raise UsageError(
            f'{name}() returned amp dtype {dtype!r}; it must be "float16" or "bfloat16"'
        )
