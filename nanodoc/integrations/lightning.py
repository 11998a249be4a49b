"""A callback for Lightning's Trainer::

    trainer = Trainer(..., callbacks=[NanodocCallback()])

It watches the training as `nanodoc run` does, prints the report to stderr, and ends a sick training
with `TrainingIsSick`."""

from __future__ import annotations

from typing import Any

try:
    import lightning.pytorch.loops.training_epoch_loop as loops
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    from nanodoc.errors import UsageError

    raise UsageError(
        "nanodoc.integrations.lightning needs lightning: pip install 'nanodoc-torch[lightning]'"
    ) from error

from nanodoc.integrations.callback_run import CallbackRun, TrainingIsSick
from nanodoc.report.report import Report

__all__ = ["NanodocCallback", "TrainingIsSick"]


class NanodocCallback(Callback):
    """`options` are those of `nanodoc run`, with underscores. Use one callback per training."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._run = CallbackRun("lightning.Trainer", loops, options)

    @property
    def report(self) -> Report | None:
        """The findings, once the training has ended."""
        return self._run.report

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._run.begin(trainer.optimizers)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._run.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._run.end(exception)
