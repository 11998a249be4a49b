"""A tripped step on disk: only tensors and plain types, written atomically, opened with
`weights_only=True`."""

from __future__ import annotations

import errno
import os
import pickle
import platform
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from nanodoc.artifacts import make_folder
from nanodoc.errors import UsageError
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.archive import first_line, opened
from nanodoc.replay.plain_values import plain
from nanodoc.replay.saved_random import random_content
from nanodoc.replay.snapshot_shape import NEEDED, SHAPE
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_sharded

FORMAT = 1


def free_name(folder: Path, step: int, suffix: str = ".pt") -> Path:
    """`nanodoc-step<N>.pt`, numbered where such a file is there already: an earlier snapshot is
    never overwritten."""
    path, number = folder / f"nanodoc-step{step}{suffix}", 2
    while path.exists():
        path, number = folder / f"nanodoc-step{step}-{number}{suffix}", number + 1
    return path


def snapshot_of(
    recipe: Recipe,
    capsule: StepState,
    entrypoint: str,
    config: Mapping[str, Any],
    run: Mapping[str, Any],
    indices: Sequence[int] | None = None,
    script: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The step's start as plain values; `indices` are the data set's of the batch's samples,
    `script` what a script's step needs besides. Of what is sharded over several ranks it holds
    nothing."""
    return {
        "nanodoc_snapshot": FORMAT,
        "step": capsule.step,
        "entrypoint": entrypoint,
        "config": plain(config),
        "run": plain(run),
        "batches": [plain(batch) for batch in capsule.batches],
        "rng": random_content(capsule.rng),
        "model": plain(_whole(recipe.model.state_dict())),
        "attributes": _attributes(recipe.model, capsule),
        "training": list(capsule.training),
        "optimizers": [plain(_whole(optimizer.state_dict())) for optimizer in recipe.optimizers],
        "scaler": plain(recipe.scaler.state_dict()) if recipe.scaler is not None else None,
        "schedulers": [
            plain(scheduler.state_dict())
            for scheduler in recipe.schedulers
            if hasattr(scheduler, "state_dict")
        ],
        "indices": list(indices) if indices is not None else None,
        "gradients": _gradients(capsule),
        "script": dict(script) if script is not None else None,
        "torch": str(torch.__version__),
        "machine": machine(next((str(p.device) for p in recipe.model.parameters()), "cpu")),
    }


def write_snapshot(folder: Path, content: Mapping[str, Any]) -> Path:
    """Writes what `snapshot_of` gives into a new file of the folder, and returns that. Raises
    `OSError` (the caller keeps its diagnosis)."""
    make_folder(folder)
    return save(content, free_name(folder, content["step"]))


def _whole(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state_dict without its sharded tensors."""
    return {
        key: _whole(value) if isinstance(value, Mapping) else value
        for key, value in state.items()
        if not (isinstance(value, torch.Tensor) and is_sharded(value))
    }


def _gradients(capsule: StepState) -> list[torch.Tensor | None]:
    grads = capsule.grads or []
    if any(g is not None and is_sharded(g) for g in grads):
        return []  # a replay can tell that the step came to something else
    return [None if g is None else g.detach() for g in grads]


def save(content: Mapping[str, Any], path: Path) -> Path:
    """Writes a snapshot's content to `path`, whole or not at all. Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(prefix=".nanodoc-", suffix=".tmp", dir=path.parent)
    failed: list[OSError] = []
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(dict(content), _Noting(file, failed))  # type: ignore[arg-type]  # all it asks
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError, pickle.PicklingError, AttributeError, TypeError) as error:
        Path(temporary).unlink(missing_ok=True)
        words = failed[0].strerror if failed else None
        if failed and failed[0].errno == errno.EFBIG:
            words = "it exceeds the file-size limit (ulimit -f)"
        raise OSError(words or str(error)) from error
    return path


class _Noting:
    """A file that keeps why it could not be written: torch tells only at which byte."""

    def __init__(self, file: IO[bytes], failed: list[OSError]) -> None:
        self._file, self._failed = file, failed

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self._failed.append(error)
            raise

    def flush(self) -> None:
        self._file.flush()


def machine(device: str) -> dict[str, str]:
    """What a replay elsewhere may differ in."""
    return {
        "device": device,
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "threads": str(torch.get_num_threads()),
    }


def differences(content: Mapping[str, Any], device: str) -> list[str]:
    """What differs between where a snapshot was written and here."""
    told = content.get("machine")
    then = (
        {str(key): str(value) for key, value in told.items()} if isinstance(told, Mapping) else {}
    )
    now = machine(device) | {"torch": str(torch.__version__)}
    if content.get("torch"):
        then["torch"] = str(content["torch"])
    return [
        f"{key} {then[key][:60]} there, {now[key]} here"
        for key in now
        if key in then and then[key] != now[key]
    ]


def minimal(
    content: Mapping[str, Any], batches: list[Any], indices: Sequence[int] | None
) -> dict[str, Any]:
    """A snapshot's content with other batches, and the data set's indices of their samples."""
    return {
        **content,
        "batches": [plain(batch) for batch in batches],
        "indices": list(indices) if indices is not None else None,
    }


def read_snapshot(path: Path) -> dict[str, Any]:
    """The snapshot in `path`; a bare `{"x", "y", "state"}` is returned as it is. Raises
    `UsageError`, executes nothing."""
    content = opened(path)
    if not isinstance(content, dict) or not (
        "nanodoc_snapshot" in content or {"x", "state"} <= set(content)
    ):
        raise UsageError(
            f'{path} is not a nanodoc snapshot: it needs the keys that nanodoc writes, or "x", '
            '"y" and "state"'
        )
    version = content.get("nanodoc_snapshot", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise UsageError(
            f"{path} has snapshot format {_told(version)}; this nanodoc reads format {FORMAT}"
        )
    if "nanodoc_snapshot" in content:
        for key in NEEDED:
            if key not in content:
                raise UsageError(f"{path} is not a snapshot written by nanodoc: it has no {key!r}")
    with warnings.catch_warnings(action="ignore"):  # as of numbers that require gradients
        for key, (fits, what) in SHAPE.items():
            if key in content and not fits(content[key]):
                raise UsageError(
                    f"{path} is not a snapshot written by nanodoc: its {key!r} is not {what}"
                )
    return content


def restore_into(recipe: Recipe, content: Mapping[str, Any]) -> None:
    """Puts a snapshot's model, optimizers, scaler and flags into a freshly built recipe. Raises
    `UsageError`."""
    state = content["state"] if "state" in content else content["model"]
    if not isinstance(state, Mapping):
        raise UsageError("the snapshot's model state is not a state_dict")
    try:
        recipe.model.load_state_dict(dict(state))
        for optimizer, saved in zip(recipe.optimizers, content.get("optimizers", []), strict=False):
            optimizer.load_state_dict(saved)
        if recipe.scaler is not None and content.get("scaler"):
            recipe.scaler.load_state_dict(content["scaler"])
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"the snapshot does not match the recipe: {first_line(error)}") from error
    modules = dict(recipe.model.named_modules())
    for path, attributes in content.get("attributes", {}).items():
        if path in modules:
            for name, value in attributes.items():
                if name in vars(modules[path]) and isinstance(value, (bool, int, float, str)):
                    setattr(modules[path], name, value)
    training = content.get("training", [])
    for module, flag in zip(recipe.model.modules(), training, strict=False):
        module.training = bool(flag)


def _attributes(model: torch.nn.Module, capsule: StepState) -> dict[str, dict[str, Any]]:
    """Plain attributes (step counters, flags) of the user's modules at the step's start."""
    paths = {id(module): path for path, module in model.named_modules()}
    return {
        paths[id(module)]: {
            k: v
            for k, v in values.items()
            if type(v) in (bool, int, float, str) and k != "training"
        }
        for module, values, _ in capsule.attributes
        if id(module) in paths  # a trainer's or a scheduler's are not the model's
    }


def _told(version: object) -> str:
    """What a stranger wrote there, in one line."""
    if isinstance(version, str):
        return ascii(version[:20])
    known = type(version) is int and abs(version) < 10**9
    return str(version) if known else f"of type {type(version).__name__}"
