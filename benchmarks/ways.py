"""Each way to run one step of the same model: bare, under nanodoc, under what else there is."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.internals import FULL_AT_FIRST, MonitoredLoop, Tracer
from benchmarks.recipes import loss_fn, own_step, recipe


class Ways:
    """Without `now_and_then` no step is sampled and no copy of the weights is kept."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        with_transformers: bool = False,
        *,
        now_and_then: bool = True,
    ) -> None:
        self.recipe, self.device = recipe(name, device), device
        (self.batch,) = self.recipe.data
        self.dtype = torch.float16 if self.recipe.scaler is not None else None
        self.records = 0
        """Ops of a traced step."""
        # a few steps before most are watched by their losses alone
        numbers = itertools.count(FULL_AT_FIRST - 8)
        shared: Any = {"step_numbers": numbers, "now_and_then": now_and_then}
        folder = Path(tempfile.mkdtemp())
        self.loop = MonitoredLoop(self.recipe, device, self.dtype, folder=folder, **shared)
        framing = MonitoredLoop(self.recipe, device, self.dtype, frames=True, **shared)
        self.ways: dict[str, Callable[[], object]] = {
            "bare": self.bare,
            "monitored": self.loop.step,
            "traced": self.traced,
            "frames": framing.step,
            "anomaly mode": self.anomaly,
        }
        self._around: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {}
        if self.dtype is not None:
            own = replace(self.recipe, train_step=own_step)
            observing = MonitoredLoop(own, device, None, **shared)
            self.ways["bare own step"] = self.bare_own_step
            self.ways["monitored own step"] = observing.step
            self._around["monitored own step"] = observing.around_steps
        if with_transformers and importlib.util.find_spec("transformers") is not None:
            self.ways["DebugUnderflowOverflow"] = self.debug_underflow

    def around(self, way: str) -> contextlib.AbstractContextManager[Any]:
        """What is put in place once, around the steps of a way."""
        return self._around.get(way, contextlib.nullcontext)()

    def close(self) -> None:
        self.loop.close()

    def bare(self) -> None:
        (optimizer,), scaler = self.recipe.optimizers, self.recipe.scaler
        optimizer.zero_grad()
        if scaler is None:
            loss = loss_fn(self.recipe.model, self.batch)
            loss.backward()
            optimizer.step()
        else:
            with torch.autocast(self.device.type, dtype=torch.float16):
                loss = loss_fn(self.recipe.model, self.batch)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        loss.item()  # every training loop logs its loss

    def bare_own_step(self) -> None:
        (optimizer,) = self.recipe.optimizers
        own_step(self.recipe.model, self.batch, optimizer, self.recipe.scaler).item()

    def traced(self) -> None:
        model = self.recipe.model
        parameters = [(f"param:{n}", p.detach()) for n, p in model.named_parameters()]
        tracer = Tracer(model, parameters)
        with tracer:
            self.bare()
        self.records = len(tracer.finish().records)

    def anomaly(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.set_detect_anomaly(True, check_nan=True):
                self.bare()

    def debug_underflow(self) -> None:
        debugging = importlib.import_module("transformers.debug_utils")
        model = self.recipe.model
        debug = debugging.DebugUnderflowOverflow(model, max_frames_to_save=100)
        try:
            self.bare()
        finally:
            for module in model.modules():
                module._forward_hooks.clear()
            del debug
