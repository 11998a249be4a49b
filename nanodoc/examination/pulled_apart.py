"""Parameters that two optimizers hold, whose losses pull them in opposite directions.

A step is run again, and the gradients are compared that the shared parameters have when either
optimizer steps. A discriminator that the generator's optimizer holds, too, and a critic that the
actor's optimizer holds, are pulled back by it in every step: their cosine is near -1. Where tasks
share a trunk, each with a head of its own, it may be as low when they have come to a compromise. So
only parameters are asked that are all that one of the two optimizers holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import torch

from nanodoc.facts.inspection import PulledApartFacts
from nanodoc.instrument.taps import BEFORE_STEP, listening
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.tensors.plain import is_plain

_MOST = 20_000_000  # elements whose gradients are kept


def shared_by_two(
    optimizers: Sequence[torch.optim.Optimizer],
) -> tuple[int, int, list[torch.Tensor]] | None:
    """(place of one optimizer, place of the other, the parameters that both hold) of the pair with
    most of them, where these are all that one of both holds; None where there is none such."""
    held = [{id(p): p for g in o.param_groups for p in g["params"]} for o in optimizers]
    pairs = [
        (i, j, [p for key, p in held[i].items() if key in held[j]])
        for i, j in combinations(range(len(held)), 2)
    ]
    pairs = [(i, j, both) for i, j, both in pairs if len(both) == min(len(held[i]), len(held[j]))]
    most = max(pairs, key=lambda pair: len(pair[2]), default=None)
    return most if most is not None and most[2] else None


class PulledApart:
    """Listens to two optimizers in steps that are run again."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        found = shared_by_two(optimizers)
        assert found is not None
        self._one, self._other, self._shared = found
        self._cosines: list[float] = []

    @contextlib.contextmanager
    def one_step(self) -> Iterator[None]:
        """Around a step that is run again."""
        gradients: dict[int, torch.Tensor] = {}

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            for place in (self._one, self._other):
                if optimizer is self._optimizers[place] and place not in gradients:
                    with torch.no_grad(), DisableTorchFunction():
                        gradients[place] = self._gradient()

        with listening((BEFORE_STEP, before)):
            yield
        if len(gradients) == 2:
            with torch.no_grad(), DisableTorchFunction():
                one, other = gradients.values()
                self._cosines.append(float(torch.cosine_similarity(one, other, dim=0)))

    def _gradient(self) -> torch.Tensor:
        """Of all shared parameters, in one row; zeros where one has none."""
        rows, left = [torch.zeros(0)], _MOST
        for parameter in self._shared:
            left -= parameter.numel()
            if left >= 0 and is_plain(parameter):
                values = parameter.grad
                if values is None or not is_plain(values):
                    values = torch.zeros_like(parameter)
                rows.append(values.detach().flatten().float().cpu())
        return torch.cat(rows)

    def facts(self) -> PulledApartFacts | None:
        """None where the two optimizers never stepped in one step."""
        if not self._cosines:
            return None
        held = [
            sum(len(group["params"]) for group in self._optimizers[place].param_groups)
            for place in (self._one, self._other)
        ]
        return PulledApartFacts(
            optimizers=(self._one, self._other),
            held=(held[0], held[1]),
            shared=len(self._shared),
            cosines=tuple(self._cosines),
        )
