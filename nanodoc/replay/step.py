"""One training step of a recipe: the driving kind, which owns zero_grad → forward → backward →
step.

The same code runs the bare step, the traced replay and the unscaled experiment, so that they can
only differ in what watches them.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from nanodoc.errors import Phase, UsageError, UserCodeError, is_users
from nanodoc.heartbeat import trail
from nanodoc.looks.scheduler import OutOfTime
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay import fsdp
from nanodoc.replay.observer import Observer
from nanodoc.replay.time_limit import broken_off_at
from nanodoc.tensors.modules import is_spread
from nanodoc.tensors.nested import lies_on, map_tensors, to_device

OnLoss = Callable[[torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of one step. `losses` are detached scalars, one for each backward."""

    losses: list[torch.Tensor]
    returned: Any = None
    """What the user's train_step returned."""


def run_step(
    runner: StepRunner,
    batches: list[Any],
    *,
    on_loss: OnLoss | None = None,
    on_gradients: Callable[[], None] | None = None,
    on_scaler_step: Callable[[], None] | None = None,
    observer: Observer | None = None,
    scaled: bool = True,
) -> StepResult:
    """Runs a step of the recipe: the only place where a loss function or a train_step is called.

    A loss function's step ends with its gradients; `StepRunner.update` lets the optimizer step. A
    train_step of the user's is called whole, under `observer`. `on_loss` is given every loss before
    its backward, `on_gradients` is called when gradients are complete, before each optimizer's
    step, and `on_scaler_step` before a GradScaler's, which may leave the optimizer's out. With
    `scaled=False` a loss function's loss is not multiplied by the loss scale. Raises
    `UserCodeError` for anything the user's code raises, `UsageError` where the loss is no scalar
    tensor.
    """
    try:
        return _step_run(runner, batches, on_loss, on_gradients, on_scaler_step, observer, scaled)
    except BaseException:
        fsdp.as_between_steps(runner.recipe.model)
        raise


def _step_run(
    runner: StepRunner,
    batches: list[Any],
    on_loss: OnLoss | None,
    on_gradients: Callable[[], None] | None,
    on_scaler_step: Callable[[], None] | None,
    observer: Observer | None,
    scaled: bool,
) -> StepResult:
    if runner.recipe.train_step is None:
        losses = runner._compute(batches, on_loss, scaled=scaled)
        if on_gradients is not None:
            on_gradients()
        return StepResult(losses)
    if observer is None:
        named = list(runner.recipe.model.named_parameters())
        observer = Observer(runner.recipe, named, expected_steps=1)
    if on_loss is not None:
        observer.on_loss = on_loss
    if on_gradients is not None:
        observer.on_gradients = on_gradients
    if on_scaler_step is not None:
        observer.on_scaler_step = on_scaler_step
    with observer:
        returned = runner._call_train_step(batches[0])
    if on_gradients is not None and (observer.steps_first or not runner.recipe.optimizers):
        on_gradients()  # no optimizer's step has told of them
    losses = list(observer.losses)
    if not losses and isinstance(returned, torch.Tensor) and returned.numel() == 1:
        losses.append(returned.detach())
        if on_loss is not None:
            on_loss(returned)
    return StepResult(losses, returned)


class StepRunner:
    """Runs a recipe's steps on one device; its crumbs say where they are."""

    def __init__(self, recipe: Recipe, device: torch.device, amp_dtype: torch.dtype | None) -> None:
        self.recipe = recipe
        self.device = device
        self.amp_dtype = amp_dtype
        self.spread = is_spread(recipe.model)
        """The model is on several devices, where the training's own code put it."""
        self.own: list[Any] = []
        """The batches that the training itself is about to be given: its own objects, which are
        handed on as they are where nothing has to be moved."""
        self.until = math.inf
        """When a step is broken off by `OutOfTime`, in seconds of `time.monotonic`."""
        self._graph: torch.Tensor | None = None
        """The training's own loss with its graph, while its optimizer steps: a plain loop holds it,
        too, and freeing it first leaves the optimizer slower memory."""
        self._phase: Phase = "forward"
        self._arguments = (
            _accepted_arguments(recipe.train_step) if recipe.train_step is not None else 0
        )

    @property
    def phase(self) -> Phase:
        """Where the last step is or was."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._phase = phase
        trail.current.phase(phase)

    @property
    def observing(self) -> bool:
        """The step is the user's own `train_step`."""
        return self.recipe.train_step is not None

    def moved(self, batch: Any) -> Any:
        """The batch with its tensors on the step's device. Where the training has spread its model
        over several, what lies on one of them stays there."""
        if self.spread and self.device.type != "cpu":
            return map_tensors(
                batch,
                lambda tensor: (
                    tensor.to(self.device, non_blocking=True) if tensor.is_cpu else tensor
                ),
            )
        for own in self.own:
            if batch is own and lies_on(batch, self.device):
                return batch
        return to_device(batch, self.device)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.amp_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.amp_dtype)

    def _compute(
        self, batches: list[Any], on_loss: OnLoss | None, *, scaled: bool
    ) -> list[torch.Tensor]:
        """zero_grad, forward and backward of every micro-batch; gradients are left unscaled in
        `.grad`.

        Returns the losses, detached.
        """
        if self.until != math.inf:
            with broken_off_at(self.until):
                return self._gradients(batches, on_loss, scaled=scaled)
        return self._gradients(batches, on_loss, scaled=scaled)

    def _gradients(
        self, batches: list[Any], on_loss: OnLoss | None, *, scaled: bool
    ) -> list[torch.Tensor]:
        recipe, optimizers = self.recipe, self.recipe.optimizers
        scaler = recipe.scaler if scaled else None
        losses: list[torch.Tensor] = []
        self.phase = "forward"
        self._graph = None
        try:
            for optimizer in optimizers:
                optimizer.zero_grad()
            if not optimizers:
                recipe.model.zero_grad()
            for batch in batches:
                if losses:
                    self.phase = "forward"
                moved = self.moved(batch)
                with self.autocast():
                    loss = self._loss(moved)
                _check_scalar(loss)
                if on_loss is not None:
                    on_loss(loss)
                losses.append(loss.detach())
                self.phase = "backward"
                part = loss / len(batches) if len(batches) > 1 else loss
                if scaler is None:
                    part.backward()
                else:
                    scaler.scale(part).backward()
                if self.own and len(batches) == 1:
                    self._graph = loss
                # the graph must be gone before the next micro-batch, as in a plain loop
                del loss, part
            if scaler is not None:
                self.phase = "unscale"
                for optimizer in optimizers:
                    scaler.unscale_(optimizer)
        except BaseException as error:
            self._told(error)
            raise
        return losses

    def update(self) -> None:
        """Clipping and the optimizer (through the scaler, when there is one). Raises
        `UserCodeError`."""
        if self.until != math.inf:
            with broken_off_at(self.until):
                self._update()
        else:
            self._update()

    def _update(self) -> None:
        recipe, self.phase = self.recipe, "optimizer"
        try:
            if recipe.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(recipe.model.parameters(), recipe.clip_grad_norm)
            for optimizer in recipe.optimizers:
                if recipe.scaler is None:
                    optimizer.step()
                else:
                    recipe.scaler.step(optimizer)
            if recipe.scaler is not None:
                recipe.scaler.update()
        except BaseException as error:
            self._told(error)
            raise
        finally:
            self._graph = None

    def _call_train_step(self, batch: Any) -> Any:
        """The user's own step, with as many of (model, batch, optimizer, scaler) as it takes."""
        recipe = self.recipe
        assert recipe.train_step is not None
        self.phase = "forward"
        arguments = (recipe.model, self.moved(batch), recipe.optimizer, recipe.scaler)
        with self._as_user_code():
            return recipe.train_step(*arguments[: self._arguments])

    def schedule(self) -> None:
        """One step of every scheduler. Raises `UserCodeError`."""
        schedulers = self.recipe.schedulers
        if not schedulers:
            return
        self.phase = "optimizer"
        with self._as_user_code():
            for scheduler in schedulers:
                scheduler.step()

    def _loss(self, batch: Any) -> Any:
        recipe = self.recipe
        if recipe.loss_fn is not None:
            return recipe.loss_fn(recipe.model, batch)
        assert recipe.criterion is not None
        if not isinstance(batch, (list, tuple)) or len(batch) != 2:
            raise UsageError(
                '"criterion" needs batches of (input, target), but this one is a '
                f'{type(batch).__name__}; use "loss_fn" instead'
            )
        return recipe.criterion(recipe.model(batch[0]), batch[1])

    def _as_user_code(self) -> contextlib.AbstractContextManager[None]:
        if self.until == math.inf:
            return _UserCode(self)
        return self._broken_off()

    @contextlib.contextmanager
    def _broken_off(self) -> Iterator[None]:
        with _UserCode(self), broken_off_at(self.until):
            yield

    def _told(self, error: BaseException) -> None:
        """Raises `UserCodeError` for what code of the training's raised."""
        if not isinstance(error, (UsageError, UserCodeError, OutOfTime)) and is_users(error):
            raise UserCodeError(error, self.phase_of(error)) from error

    def phase_of(self, error: BaseException) -> Phase:
        """Where the error came from; in a train_step of the user's, as its traceback tells."""
        if not self.observing:
            return self.phase
        frames = {
            frame.f_code.co_filename + ":" + frame.f_code.co_name
            for frame, _ in traceback.walk_tb(error.__traceback__)
        }
        if any(name.endswith("graph.py:_engine_run_backward") for name in frames):
            return "backward"
        return (
            "optimizer"
            if any("/torch/optim/" in name or "/torch/amp/grad_scaler" in name for name in frames)
            else "forward"
        )


class _UserCode:
    """Around code of the training's: what it raises is told as `UserCodeError`."""

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._runner._told(error)


def _check_scalar(loss: Any) -> None:
    if not isinstance(loss, torch.Tensor):
        raise UsageError(
            f"the loss is a {type(loss).__name__}; return a scalar torch.Tensor from the loss "
            "function"
        )
    if loss.numel() != 1:
        raise UsageError(
            f"the loss has shape {tuple(loss.shape)}; return a scalar, for example loss.mean()"
        )
    if loss.is_complex():
        raise UsageError("the loss is complex; return a real scalar")
    if loss.layout is not torch.strided or loss.is_meta:
        kind = "on the meta device" if loss.is_meta else str(loss.layout).removeprefix("torch.")
        raise UsageError(f"the loss is {kind}; return a dense scalar that has a value")


def _accepted_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return 4
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 4
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 2:
        raise UsageError(
            f"train_step takes {len(positional)} arguments, but nanodoc calls train_step(model, "
            "batch, optimizer, scaler)"
        )
    return min(4, len(positional))
