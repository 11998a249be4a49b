"""What is known of one parameter's gradient from call to call, by identity and version counter."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class NotedGradient:
    """What is known of one parameter's gradient since it was last noted."""

    __slots__ = ("carried", "cleared", "fresh", "grad", "stepped", "version")

    def __init__(self) -> None:
        self.grad: Any = None  # weak reference to the gradient tensor
        self.version = -1
        self.stepped = False
        """An optimizer has stepped on it, and nobody has cleared or rewritten it since."""
        self.carried = False
        """It was added to without having been cleared since such a step."""
        self.fresh = False
        """A backward gave it something that no step has used yet."""
        self.cleared = False
        """zero_grad() came since."""

    def same(self, grad: torch.Tensor | None) -> bool:
        return (
            grad is not None
            and self.grad is not None
            and self.grad() is grad
            and grad._version == self.version
        )

    def note(self, grad: torch.Tensor | None) -> None:
        self.grad, self.version = (
            (weakref.ref(grad), grad._version) if grad is not None else (None, -1)
        )
