"""Objectives of gpytorch, which are log-likelihoods or lower bounds of one: whether a step makes
them smaller."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch

from nanodoc.facts.inspection import MinimisedLikelihood
from nanodoc.trace.spans import Place, calling_places, resolved

_LIBRARY = "gpytorch.mlls"
_SAME = 1e-5  # relative


class Likelihoods:
    """Notes what such objectives return while a step runs, and its losses."""

    def __init__(self) -> None:
        self._seen: list[tuple[str, float, Place | None]] = []
        self._losses: list[float] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Open while the step runs."""
        module = getattr(sys.modules.get("gpytorch.module"), "Module", None)
        if module is None:
            yield
            return
        called = module.__call__  # its modules call forward() themselves: no hook of torch's runs

        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            output = called(module, *args, **kwargs)
            with contextlib.suppress(Exception):  # what a look of ours meets is not the step's
                self._returned(module, output)
            return output

        module.__call__ = call
        try:
            yield
        finally:
            module.__call__ = called

    def _returned(self, module: torch.nn.Module, output: Any) -> None:
        kinds = (kind.__module__ for kind in type(module).__mro__)
        if not any(name.startswith(_LIBRARY) for name in kinds):
            return
        if isinstance(output, torch.Tensor) and output.requires_grad and output.numel() == 1:
            own, caller = calling_places(3)
            self._seen.append((type(module).__name__, float(output.detach()), caller or own))

    def on_loss(self, loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            self._losses.append(float(loss.detach()))

    def minimised(self) -> MinimisedLikelihood | None:
        """The only objective of a step with one loss, which is that very number, and not its
        negative."""
        if len(self._seen) != 1 or len(self._losses) != 1:
            return None
        (name, value, place), loss = self._seen[0], self._losses[0]
        if not value or abs(loss - value) > _SAME * abs(value):
            return None
        return MinimisedLikelihood(objective=name, line=resolved(place))
