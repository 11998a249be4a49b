"""What the user trains: the contract between a training script and nanodoc."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

# a training script imports Recipe before torch; `nanodoc --help` never imports torch at all
if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One training run, as `build()` returns it.

    Either `loss_fn(model, batch) -> scalar Tensor`, or `criterion(output, target) -> scalar Tensor`
    with `batch = (input, target)`, or the user's own `train_step(model, batch, optimizer, scaler)
    -> loss`, which is observed and never replaced. `data` is any re-iterable of batches.
    `scheduler` is stepped once per pass over `data` unless `scheduler_interval` is "step".
    `accumulate` micro-batches make one optimizer step. `amp` is `{"dtype": "float16"|"bfloat16",
    "scaler": bool, "init_scale": float}`.
    """

    model: torch.nn.Module
    data: Iterable[Any]
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None
    criterion: Callable[[Any, Any], torch.Tensor] | None = None
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None
    scheduler: Any = None
    scheduler_interval: str = "epoch"
    amp: Mapping[str, Any] | None = None
    scaler: Any = None
    train_step: Callable[..., Any] | None = None
    max_steps: int | None = None
    clip_grad_norm: float | None = None
    accumulate: int = 1

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Every optimizer, in the order given; empty when the recipe has none."""
        given: Any = self.optimizer
        if given is None:
            return []
        # asked several times a step: to ask whether it is a Sequence takes longer
        return [given] if hasattr(given, "param_groups") else list(given)

    @property
    def schedulers(self) -> list[Any]:
        """Every scheduler, in the order given."""
        if self.scheduler is None:
            return []
        return (
            list(self.scheduler) if isinstance(self.scheduler, (list, tuple)) else [self.scheduler]
        )
