"""A tripped step on disk: only tensors and plain types, written atomically, opened with
`weights_only=True`."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import platform
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from nanodoc.config import AMP
from nanodoc.errors import UsageError
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.archive import first_line, opened
from nanodoc.replay.plain_values import plain
from nanodoc.replay.rng import RandomState
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import tensors_in

FORMAT = 1


def free_name(folder: Path, step: int) -> Path:
    """`nanodoc-step<N>.pt`, numbered where such a file is there already: an earlier snapshot is
    never overwritten."""
    path, number = folder / f"nanodoc-step{step}.pt", 2
    while path.exists():
        path, number = folder / f"nanodoc-step{step}-{number}.pt", number + 1
    return path


def write_snapshot(
    folder: Path,
    recipe: Recipe,
    capsule: StepState,
    entrypoint: str,
    config: Mapping[str, Any],
    run: Mapping[str, Any],
    indices: Sequence[int] | None = None,
    script: Mapping[str, Any] | None = None,
) -> Path:
    """Writes the step's start and returns the file; `indices` are the data set's of the batch's
    samples, `script` what a script's step needs besides. Raises `OSError` (the caller keeps its
    diagnosis)."""
    content = {
        "nanodoc_snapshot": FORMAT,
        "step": capsule.step,
        "entrypoint": entrypoint,
        "config": plain(config),
        "run": plain(run),
        "batches": [plain(batch) for batch in capsule.batches],
        "rng": random_content(capsule.rng),
        "model": plain(dict(recipe.model.state_dict())),
        "attributes": _attributes(recipe.model, capsule),
        "training": list(capsule.training),
        "optimizers": [plain(optimizer.state_dict()) for optimizer in recipe.optimizers],
        "scaler": plain(recipe.scaler.state_dict()) if recipe.scaler is not None else None,
        "schedulers": [
            plain(scheduler.state_dict())
            for scheduler in recipe.schedulers
            if hasattr(scheduler, "state_dict")
        ],
        "indices": list(indices) if indices is not None else None,
        "gradients": [None if g is None else g.detach() for g in capsule.grads or []],
        "script": dict(script) if script is not None else None,
        "torch": str(torch.__version__),
        "machine": machine(next((str(p.device) for p in recipe.model.parameters()), "cpu")),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return save(content, free_name(folder, capsule.step))


def random_content(rng: RandomState) -> dict[str, Any]:
    """Random states as plain values; `random_state` reads them."""
    return {
        "python": plain(rng.python),
        "numpy": plain(rng.numpy),
        "cpu": rng.cpu,
        "device": next(iter(rng.accelerators.values()), None),
        "devices": {str(device): state for device, state in rng.accelerators.items()},
    }


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
            words = "it is larger than a file may be here (ulimit -f)"
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
            f'{path} is no nanodoc snapshot: it needs the keys nanodoc writes, or "x", "y" and '
            '"state"'
        )
    version = content.get("nanodoc_snapshot", FORMAT)
    if type(version) is not int or version != FORMAT:
        raise UsageError(
            f"{path} is a snapshot of format {str(version)[:20]}; this nanodoc reads format "
            f"{FORMAT}"
        )
    if "nanodoc_snapshot" in content:
        for key in _NEEDED:
            if key not in content:
                raise UsageError(f"{path} is no snapshot that nanodoc wrote: it has no {key!r}")
    for key, (fits, what) in _SHAPE.items():
        if key in content and not fits(content[key]):
            raise UsageError(f"{path} is no snapshot that nanodoc wrote: its {key!r} is not {what}")
    return content


def _is_mapping(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_run(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    return all(value.get(key) is None or _is_number(value[key]) for key in ("loss", "grad_norm"))


def _are_batches(value: object) -> bool:
    return isinstance(value, list) and bool(value) and not any(t.is_meta for t in tensors_in(value))


def _is_config(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    seed = value.get("seed")
    fits = seed is None or (type(seed) is int and 0 <= seed < 2**63)
    return (
        fits
        and value.get("amp") in (None, *AMP)
        and isinstance(value.get("recipe", {}), (dict, type(None)))
    )


def _is_rng(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    python, numpy, cpu, device = (value.get(key) for key in ("python", "numpy", "cpu", "device"))
    words = (
        isinstance(python, (tuple, list))
        and len(python) == 3
        and isinstance(python[1], (tuple, list))
        and all(type(w) is int for w in python[1])
        # the spare normal deviate, which `setstate` takes as it is
        and isinstance(python[2], (float, type(None)))
    )
    arrays = numpy is None or (
        isinstance(numpy, (tuple, list)) and len(numpy) == 5 and isinstance(numpy[1], torch.Tensor)
    )
    states = all(
        state is None or (isinstance(state, torch.Tensor) and state.dtype == torch.uint8)
        for state in (cpu, device)
    )
    devices = value.get("devices", {})
    named = _is_mapping(devices) and all(
        isinstance(state, torch.Tensor) and state.dtype == torch.uint8 for state in devices.values()
    )
    return words and arrays and states and named and cpu is not None and _generators_take(value)


def _generators_take(saved: dict[str, Any]) -> bool:
    """Whether the generators of the CPU can be put into these states."""
    try:
        state = random_state({"rng": saved})
        assert state is not None
        random.Random().setstate(state.python)
        torch.Generator().set_state(state.cpu)
        if state.numpy is not None and "numpy" in sys.modules:
            sys.modules["numpy"].random.RandomState().set_state(state.numpy)
    except Exception:  # whatever their own checks raise
        return False
    return True


def _is_script(value: object) -> bool:
    if value is None:
        return True
    if not _is_mapping(value):
        return False
    assert isinstance(value, dict)
    target, arguments, drawn = value.get("target"), value.get("arguments"), value.get("drawn")
    return (
        "target" in value
        and (target is None or (isinstance(target, str) and "\0" not in target))
        and isinstance(value.get("module"), bool)
        and isinstance(arguments, list)
        and all(isinstance(a, str) and "\0" not in a for a in arguments)
        and type(value.get("line")) is int
        and type(value.get("optimizer_steps")) is int
        and isinstance(value.get("source"), str)
        and _is_mapping(value.get("variables"))
        and isinstance(state := value.get("state"), list)
        and all(_is_state(entry) for entry in state)
        and isinstance(drawn, list)
        and all(isinstance(d, list) and len(d) == 3 and _is_rng(d[2]) for d in drawn)
    )


def _is_state(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], list)
        and all(type(key) in (str, int) for key in value[0])
        and isinstance(value[1], (list, dict))
    )


def _are_gradients(value: object) -> bool:
    return isinstance(value, list) and all(g is None or isinstance(g, torch.Tensor) for g in value)


# what every key of a stranger's file must look like before anything of it is used
_SHAPE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": (lambda v: type(v) is int and 0 <= v < 2**53, "a step number"),
    "entrypoint": (lambda v: isinstance(v, str) and "\0" not in v, "FILE.py:NAME"),
    "config": (_is_config, "a configuration"),
    "run": (_is_run, "a mapping of numbers"),
    "batches": (_are_batches, "a list of batches, with values"),
    "rng": (_is_rng, "a set of random states"),
    "model": (_is_mapping, "a state_dict"),
    "attributes": (
        lambda v: _is_mapping(v) and all(isinstance(values, dict) for values in v.values()),
        "a mapping of modules",
    ),
    "training": (
        lambda v: isinstance(v, list) and all(isinstance(flag, bool) for flag in v),
        "a list of flags",
    ),
    "optimizers": (lambda v: isinstance(v, list), "a list of state_dicts"),
    "indices": (
        lambda v: v is None or (isinstance(v, list) and all(type(row) is int for row in v)),
        "a list of indices",
    ),
    "gradients": (_are_gradients, "a list of gradients"),
    "script": (_is_script, "what a script's step needs"),
    "torch": (lambda v: isinstance(v, str), "a version"),
    "machine": (_is_mapping, "a mapping"),
}

_NEEDED = ("step", "entrypoint", "batches", "rng", "model")


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
        raise UsageError(f"the snapshot does not fit the recipe: {first_line(error)}") from error
    modules = dict(recipe.model.named_modules())
    for path, attributes in content.get("attributes", {}).items():
        if path in modules:
            for name, value in attributes.items():
                if name in vars(modules[path]) and isinstance(value, (bool, int, float, str)):
                    setattr(modules[path], name, value)
    training = content.get("training", [])
    for module, flag in zip(recipe.model.modules(), training, strict=False):
        module.training = bool(flag)


def random_state(content: Mapping[str, Any]) -> RandomState | None:
    """The snapshot's random states, None for a bare snapshot."""
    saved = content.get("rng")
    if not isinstance(saved, Mapping):
        return None
    python = saved["python"]
    numpy = saved.get("numpy")
    if numpy is not None:
        numpy = (numpy[0], numpy[1].numpy().astype("uint32"), *numpy[2:])
    return RandomState(
        (python[0], tuple(python[1]), python[2]), numpy, saved["cpu"], _accelerators(content, saved)
    )


def _accelerators(
    content: Mapping[str, Any], saved: Mapping[str, Any]
) -> dict[torch.device, torch.Tensor]:
    """The accelerators' random states by device; types of device that this torch does not know are
    left out."""
    states = saved.get("devices")
    if not states and saved.get("device") is not None:  # written before several devices were kept
        machine = content.get("machine")
        states = (
            {str(machine.get("device")): saved["device"]} if isinstance(machine, Mapping) else {}
        )
    found = {}
    for name, state in (states or {}).items():
        with contextlib.suppress(RuntimeError):
            found[torch.device(name)] = state
    return found


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
