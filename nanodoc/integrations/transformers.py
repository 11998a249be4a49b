"""A callback for `transformers.Trainer`::

    trainer = Trainer(..., callbacks=[NanodocCallback()])

It watches the training as `nanodoc run` does, prints the report to stderr, and ends a sick training
with `TrainingIsSick`."""

from __future__ import annotations

from typing import Any

try:
    import transformers.trainer
    from transformers import TrainerCallback
except ImportError as error:
    from nanodoc.errors import UsageError

    raise UsageError(
        "nanodoc.integrations.transformers needs transformers: pip install "
        "'nanodoc-torch[transformers]'"
    ) from error

from nanodoc.integrations.callback_run import CallbackRun, TrainingIsSick
from nanodoc.report.report import Report

__all__ = ["NanodocCallback", "TrainingIsSick"]


class NanodocCallback(TrainerCallback):
    """`options` are those of `nanodoc run`, with underscores. Use one callback per training."""

    def __init__(self, **options: Any) -> None:
        self._run = CallbackRun("transformers.Trainer", transformers.trainer, options)

    @property
    def report(self) -> Report | None:
        """The findings, once the training has ended."""
        return self._run.report

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.begin([kwargs.get("optimizer")])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._run.end()
