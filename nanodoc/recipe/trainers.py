"""Trainers that `build()` may return instead of a recipe: they are run as they are, and watched.
None of their packages is imported here."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nanodoc.errors import UsageError

if TYPE_CHECKING:
    from nanodoc.recipe.build_watch import BuildWatch

_MODULES = {
    "lightning.pytorch.core.module": "lightning.pytorch",
    "pytorch_lightning.core.module": "pytorch_lightning",
}
_TRAINERS = {
    "lightning.pytorch.trainer.trainer": "lightning.pytorch",
    "pytorch_lightning.trainer.trainer": "pytorch_lightning",
}
# nothing of the run is to be left behind, and the report has stderr's end for itself
_QUIET = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class TrainerReturned(UsageError):
    """`build()` returned what trains by itself. `train` runs it; `building` has seen it made."""

    def __init__(self, name: str, value: Any, train: Callable[[], Any]) -> None:
        kind = type(value).__name__
        super().__init__(
            f"{name}() returned a {kind}, which only `nanodoc run` supports; this command needs a "
            "recipe"
        )
        self.train = train
        self.building: BuildWatch | None = None


def training_of(value: Any, name: str) -> Callable[[], Any] | None:
    """What runs the training that `build()` returned: a transformers Trainer (TRL's are), or for
    Lightning `(module, data)`, `(module, trainer)`, `(module, trainer, data)` or a module with a
    train_dataloader of its own. None for anything else. Raises `UsageError` for a module without
    data."""
    if _is(value, "transformers.trainer", "Trainer"):
        return lambda: value.train()
    parts = value if isinstance(value, tuple) and value else (value,)
    package = next((_MODULES[k] for k in _bases(parts[0], "LightningModule") if k in _MODULES), "")
    if not package:
        return None
    module, *rest = parts
    trainers = [part for part in rest if set(_bases(part, "Trainer")) & _TRAINERS.keys()]
    data = [part for part in rest if part not in trainers]
    if not data and type(module).train_dataloader is _own_loader(package):
        raise UsageError(
            f"{name}() returned a {type(module).__name__} without data; return (module, loader), "
            "(module, trainer, loader), or give the module a train_dataloader()"
        )

    def train() -> None:
        trainer = trainers[0] if trainers else None
        if trainer is None:
            trainer = importlib.import_module(package).Trainer(max_epochs=-1, **_QUIET)
        trainer.fit(module, *data[:1])

    return train


def _own_loader(package: str) -> Any:
    """The train_dataloader of a module that defines none."""
    return importlib.import_module(package).LightningModule.train_dataloader


def _bases(value: Any, name: str) -> list[str]:
    """The modules of the classes of that name that it is an instance of."""
    return [kind.__module__ for kind in type(value).__mro__ if kind.__name__ == name]


def _is(value: Any, module: str, name: str) -> bool:
    return module in _bases(value, name)
