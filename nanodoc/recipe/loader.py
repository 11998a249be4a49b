"""Imports `file.py:name` and calls it, turning each way this can fail into one clear line."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from nanodoc.errors import UsageError, UserCodeError, is_users
from nanodoc.recipe.adapt import as_recipe
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.target import checked_file, split_entrypoint
from nanodoc.recipe.trainers import TrainerReturned, training_of


def load_callable(entrypoint: str) -> tuple[Callable[..., Any], str]:
    """The callable an entrypoint names, and its name. Raises `UsageError`, or `UserCodeError` if
    the file itself raises."""
    path, name = split_entrypoint(entrypoint)
    checked_file(path, "run")
    module = _import(path)
    if not hasattr(module, name):
        near = get_close_matches(
            name, [key for key, value in vars(module).items() if callable(value)], 1
        )
        raise UsageError(
            f"{path} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    target = getattr(module, name)
    if not callable(target):
        raise UsageError(
            f"{path}:{name} is a {type(target).__name__}, not callable; name a function that "
            f"returns {_what()}"
        )
    return target, name


def build_recipe(entrypoint: str, config: Mapping[str, Any] | None = None) -> Recipe:
    """Calls the entrypoint, with `config` when it takes an argument, and adapts what it returns.
    Raises `TrainerReturned` where that trains by itself."""
    build, name = load_callable(entrypoint)
    arguments = (dict(config or {}),) if _takes_argument(build, given=bool(config)) else ()
    try:
        with _command_line_of(split_entrypoint(entrypoint)[0]):
            value = build(*arguments)
    except BaseException as error:
        if not is_users(error):
            raise
        raise UserCodeError(error, "setup") from error
    train = training_of(value, name)
    if train is not None:
        raise TrainerReturned(name, value, train)
    return as_recipe(value, name)


def _what() -> str:
    from nanodoc.recipe.adapt import ACCEPTED

    return ACCEPTED


def _takes_argument(build: Callable[..., Any], *, given: bool) -> bool:
    """Whether to pass the configuration: always where an argument is required, else only if there
    is something to pass."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):  # a builtin or a C callable has no signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return any(p.default is p.empty for p in positional) or (given and bool(positional))


@contextlib.contextmanager
def _command_line_of(path: Path) -> Iterator[None]:
    """A script that parses its command line must not see ours."""
    arguments, sys.argv = sys.argv, [str(path)]
    try:
        yield
    finally:
        sys.argv = arguments


def _import(path: Path) -> ModuleType:
    folder = str(path.parent.resolve())
    if folder not in sys.path:
        # as `python train.py` would, so that the script's neighbours import
        sys.path.insert(0, folder)
    name = (
        path.stem
        if path.stem.isidentifier() and path.stem not in sys.modules
        else f"_nanodoc_{abs(hash(path.resolve()))}"
    )
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file; give one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # dataclasses, pickling and loader workers look the module up by its name
    sys.modules[name] = module
    try:
        with _command_line_of(path):
            spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        shown = (error.text or "").strip()
        raise UsageError(
            f"syntax error in {error.filename}:{error.lineno}: {error.msg}"
            + (f": {shown}" if shown else "")
        ) from error
    except BaseException as error:
        del sys.modules[name]
        if not is_users(error):
            raise
        raise UserCodeError(error, "setup") from error
    return module
