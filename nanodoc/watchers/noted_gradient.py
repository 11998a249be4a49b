"""What is known of one parameter's gradient from call to call, by identity and version counter."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.tensors.plain import is_plain, local_of
from nanodoc.trace.spans import Place


class NotedGradient:
    """What is known of one parameter's gradient since it was last noted."""

    __slots__ = (
        "carried",
        "cleared",
        "clipped_to",
        "divided",
        "dropped",
        "dropped_from",
        "fresh",
        "grad",
        "made_at",
        "place",
        "stepped",
        "value",
        "version",
        "weights",
    )

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
        self.place: Place | None = None
        """The line of the last backward that gave it something."""
        self.divided = False
        """The loss of that one was a part of a sum or of a mean."""
        self.weights = -1
        """How often the parameter had been written to by then."""
        self.clipped_to = -1
        """The version that a clipping makes of it."""
        self.made_at = 0
        """How many optimizer steps there had been by then."""
        self.dropped = 0
        """Since its last step: backward passes whose gradient zero_grad() took away before any
        optimizer had stepped."""
        self.value: tuple[weakref.ref[torch.Tensor], int, float] | None = None
        """Where no optimizer has stepped yet: the parameter, a place in it, and its value there."""
        self.dropped_from: Place | None = None
        """The line of the last of them."""

    def same(self, grad: torch.Tensor | None) -> bool:
        return (
            grad is not None
            and self.grad is not None
            and self.grad() is grad
            and writes(grad) == self.version
        )

    def only_clipped(self, grad: torch.Tensor | None) -> bool:
        """As `same`, but for a clipping since."""
        return self.same(grad) or (
            grad is not None
            and self.grad is not None
            and self.grad() is grad
            and writes(grad) == self.clipped_to
        )

    def note(self, grad: torch.Tensor | None) -> None:
        self.grad, self.version = (
            (weakref.ref(grad), writes(grad)) if grad is not None else (None, -1)
        )

    def note_value(self, parameter: torch.Tensor) -> None:
        """Of a plain parameter, the value with the largest gradient."""
        grad = parameter.grad
        if grad is None or not (parameter.is_floating_point() and grad.numel()):
            return
        if is_plain(parameter) and is_plain(grad):
            with torch.no_grad(), DisableTorchFunction():
                place = int(grad.abs().argmax())
                self.value = weakref.ref(parameter), place, float(parameter.reshape(-1)[place])

    @property
    def moved(self) -> bool:
        """The parameter has another value by now."""
        parameter = self.value[0]() if self.value is not None else None
        if self.value is None or parameter is None:
            return False
        with torch.no_grad(), DisableTorchFunction():
            return float(parameter.reshape(-1)[self.value[1]]) != self.value[2]


def writes(grad: torch.Tensor) -> int:
    """How often it was written to. FSDP writes into the part of a sharded one that this rank holds,
    below the tensor that the training sees."""
    if type(grad) is torch.Tensor:
        return grad._version
    local = local_of(grad)
    return grad._version if local is grad else grad._version + local._version


def have_moved(updates: list[NotedGradient]) -> bool:
    """Most of the parameters whose values are known were written to since the backward that gave
    them these gradients."""
    fresh = [update for update in updates if update.fresh and update.value is not None]
    return 2 * sum(update.moved for update in fresh) > len(fresh)


def is_zero(grad: torch.Tensor) -> bool:
    """Of a plain tensor; what is laid out or kept otherwise is not looked at."""
    plain = type(grad) is torch.Tensor and grad.layout is torch.strided
    return plain and not bool(grad.any())


def lost(
    known: Sequence[tuple[torch.nn.Parameter, NotedGradient]], stepped: int
) -> tuple[list[tuple[torch.nn.Parameter, NotedGradient]], bool]:
    """(those whose gradients were cleared since a backward gave them, whether that is all). Where
    other parameters still have theirs, only what was given behind the last of the optimizers'
    `stepped` steps counts: a step before this one may have left them out."""
    # in this order: the values are on their device
    cleared = [(p, u) for p, u in known if (u.cleared if u.fresh else u.dropped)]
    gone = [(p, u) for p, u in cleared if p.grad is None or not bool(local_of(p.grad).any())]
    if not gone:
        return [], False
    fresh = sum(u.fresh for _, u in known)
    if fresh and sum(u.fresh for _, u in gone) == fresh:
        return gone, True
    return [(p, u) for p, u in gone if u.made_at == stepped], False
