"""Which of the model's parameters each optimizer steps."""

from __future__ import annotations

import torch


class Shares:
    """The parameters of each optimizer by name; looked for again where its own have changed."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[int], list[tuple[str, torch.nn.Parameter]]]] = {}

    def of(
        self, optimizer: torch.optim.Optimizer, named: list[tuple[str, torch.nn.Parameter]]
    ) -> list[tuple[str, torch.nn.Parameter]]:
        """Those of `named`, always the same list, that the optimizer steps."""
        own = [id(p) for group in optimizer.param_groups for p in group["params"]]
        known = self._known.get(id(optimizer))
        if known is None or known[0] != own:
            among = set(own)
            known = self._known[id(optimizer)] = own, [n for n in named if id(n[1]) in among]
        return known[1]
