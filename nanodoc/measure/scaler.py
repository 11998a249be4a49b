"""What a GradScaler holds, as device scalars that travel in the step's one copy to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.facts.amp import ScalerStep


@dataclass(slots=True)
class ScalerReading:
    """0-dim tensors to be read, and what each of them is: scale, growth tracker, then found_inf by
    (optimizer, device)."""

    tensors: list[torch.Tensor]
    found: list[tuple[int, str]]

    def step(
        self,
        number: int,
        values: Sequence[float],
        left_out: Sequence[int] | None = None,
        taken: Sequence[int] = (),
    ) -> ScalerStep:
        """The facts of step `number`, from the tensors' values. `left_out` and `taken` are what a
        train_step was seen to skip and to step; None where only found_inf tells."""
        scale, tracker, *found = values
        checked = [(*where, bool(value)) for where, value in zip(self.found, found, strict=True)]
        device = str(self.tensors[0].device)
        known = {optimizer for optimizer, _, _ in checked}
        checked += [(o, device, True) for o in left_out or () if o not in known]
        checked += [
            (o, device, False) for o in taken if o not in known and o not in (left_out or ())
        ]
        skipped = sorted({optimizer for optimizer, _, bad in checked if bad} | set(left_out or ()))
        return ScalerStep(
            step=number,
            scale=scale,
            growth_tracker=tracker,
            found_inf=tuple(checked),
            skipped=tuple(skipped),
        )


def read_scaler(
    scaler: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    state: Sequence[torch.Tensor] | None = None,
) -> ScalerReading | None:
    """What to read of an enabled scaler that has scaled something, else None. `state` is (scale,
    growth tracker) where they were kept from before an update."""
    if scaler is None or not scaler.is_enabled():
        return None
    held = list(state) if state is not None else [scaler._scale, scaler._growth_tracker]
    if len(held) != 2 or not all(isinstance(value, torch.Tensor) for value in held):
        return None
    tensors = [held[0].detach(), held[1].detach().float()]
    found = []
    states = getattr(scaler, "_per_optimizer_states", {})
    for position, optimizer in enumerate(optimizers):
        by_device = states[id(optimizer)]["found_inf_per_device"] if id(optimizer) in states else {}
        for device, value in by_device.items():
            tensors.append(value.detach())
            found.append((position, str(device)))
    return ScalerReading(tensors, found)
