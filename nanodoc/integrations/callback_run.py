"""What the callbacks of all trainers share."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from nanodoc.config import load_config
from nanodoc.errors import InternalError
from nanodoc.pipeline.script import ScriptRun
from nanodoc.progress import Progress
from nanodoc.report.report import Report
from nanodoc.report.terminal import render
from nanodoc.script.hot_marks import mark_imported
from nanodoc.script.loops import Loops
from nanodoc.script.states import TrainingIsSick

__all__ = ["CallbackRun", "TrainingIsSick"]


class CallbackRun:
    """Watches one training of a trainer whose loop is in `module`."""

    def __init__(self, name: str, module: ModuleType, options: dict[str, Any]) -> None:
        """Raises `UsageError` for an option that `nanodoc run` does not have."""
        loops = Loops()
        mark_imported(module, loops)
        config = load_config(None, options)
        self._run = ScriptRun(
            name, lambda: None, loops, config, Progress(), in_code=True, raises=True
        )
        self._around: AbstractContextManager[None] | None = None
        self.report: Report | None = None
        """What was found, when the training is over."""

    def begin(self, optimizers: Iterable[Any]) -> None:
        """The training begins."""
        self._around = self._run.watching(lambda error: False)
        self._around.__enter__()
        for optimizer in optimizers:
            inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper
            if isinstance(inner, torch.optim.Optimizer):
                self._run.session.made(inner)

    def end(self, error: BaseException | None = None) -> None:
        """The training is over, or `error` has ended it; the report goes to stderr."""
        around, self._around = self._around, None
        if around is None:
            return
        with contextlib.suppress(type(error) if error is not None else TrainingIsSick):
            around.__exit__(type(error) if error is not None else None, error, None)
        told = self._run.told
        try:
            self.report = self._run.report()
        except InternalError as broken:
            print(f"nanodoc: {broken}", file=sys.stderr)
            return
        if not told:
            print(render(self.report), file=sys.stderr)
