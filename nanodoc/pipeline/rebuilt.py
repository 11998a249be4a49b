"""The data of a training, made anew to see which line of the user's code makes what is wrong in
it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from nanodoc.accelerator import device_of
from nanodoc.config import Config
from nanodoc.examination.making import Source
from nanodoc.loop.settings import seed_everything, with_amp
from nanodoc.recipe.data_loader import loader_of
from nanodoc.recipe.loader import build_recipe
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.script.launcher import Program, known_loops
from nanodoc.script.muted import muted
from nanodoc.script.outside import Outside
from nanodoc.script.replay_session import ReplaySession
from nanodoc.script.states import ScriptEnded
from nanodoc.supervise.launch import Launch
from nanodoc.tensors.modules import move_module
from nanodoc.tensors.nested import to_device

Rebuilt = Callable[[], contextlib.AbstractContextManager[Source | None]]
"""Makes a training's data anew while it is open."""

_LONGEST = 60.0


def can_be_repeated(took: float) -> bool:
    """Whether data whose making took so many seconds are made once more: not for long, and not on
    one of several ranks, which would wait for the others."""
    return took <= _LONGEST and int(os.environ.get("WORLD_SIZE", "1")) < 2


@contextlib.contextmanager
def data_of(entrypoint: str, config: Config) -> Iterator[Source | None]:
    """The data of a recipe that is built once more, silently and without writing a file. Raises as
    the user's `build` does."""
    with muted():
        if config.seed is not None:
            seed_everything(config.seed)
        recipe = build_recipe(entrypoint, config.recipe)
        loader = loader_of(recipe.data)
        source = Source.of_loader(recipe.data if loader is None else loader)
        yield replace(source, step=lambda: _first_step(recipe, config))


def _first_step(recipe: Recipe, config: Config) -> None:
    """The first step of a recipe, without the optimizer's."""
    device = device_of(recipe.model, config.device)
    move_module(recipe.model, device, recipe.optimizers)
    recipe, amp_dtype = with_amp(recipe, config.amp, device)
    batch = to_device(next(iter(recipe.data)), device)
    run_step(StepRunner(recipe, device, amp_dtype), [batch])


@contextlib.contextmanager
def data_of_script(launch: Launch) -> Iterator[Source | None]:
    """The data set of a script's training: the script runs up to its first step once more, silently
    and without writing a file. None where it comes to no step, or has no loader."""
    loops = known_loops()  # trainers are not imported anew
    with _own_modules(launch), muted():
        outside = Outside(loops, torch.device("cpu"))
        session = ReplaySession(loops, outside, lambda first, step: None)
        try:
            session.install()
            with contextlib.suppress(ScriptEnded):
                Program(launch, loops).run()
        finally:
            session.close()
        yield Source.of_iterator(outside.iterator) if session.reached else None


@contextlib.contextmanager
def _own_modules(launch: Launch) -> Iterator[None]:
    """The script's own modules are imported anew inside, and are afterwards as they were, as are
    the interpreter's lists of them."""
    root = os.getcwd() if launch.module else os.path.dirname(os.path.abspath(launch.target))
    inside = os.path.realpath(root) + os.sep
    modules = dict(sys.modules)
    path, argv, finders, folder = list(sys.path), list(sys.argv), list(sys.meta_path), os.getcwd()
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and os.path.realpath(file).startswith(inside):
            installed = f"{os.sep}site-packages{os.sep}" in file
            if not (installed or name.partition(".")[0] == "nanodoc"):
                del sys.modules[name]
    register = atexit.register
    atexit.register = lambda function, *args, **kwargs: function  # type: ignore[assignment]  # put back below
    try:
        yield
    finally:
        atexit.register = register
        for name in [name for name in sys.modules if name not in modules]:
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and os.path.realpath(file).startswith(inside):
                del sys.modules[name]
        sys.modules.update(modules)
        sys.path[:], sys.argv[:], sys.meta_path[:] = path, argv, finders
        os.chdir(folder)
