"""What a rank's own gradients are in a script's first step, what its optimizer steps with, and how
many labels its loss is the mean of."""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from nanodoc.facts.ranks import RankGradients
from nanodoc.instrument.originals import call, of_function_mode
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.parsed import nodes_of
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.vocabulary.calls import CLASSIFICATION, FACTORS
from nanodoc.vocabulary.names import canonical
from nanodoc.watchers.watch import Watch

_MOST = 65_536  # elements of each parameter that are looked at
_MOST_IN_ALL = 4_000_000
_WAVES = (0.7, 1.3, 2.1, 2.9)
"""Frequencies of the directions that gradients are projected on: any four that have nothing to do
with a layer's shape."""
_MEAN = 1  # `Reduction::Mean` of ATen
_RANKS = re.compile(r"world|(num|n)_?(ranks|gpus|replicas|proc)|nproc", re.IGNORECASE)


class RankGradientsWatch(Watch):
    """Told by whoever runs the first step again, without the other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._parameters: list[torch.Tensor] = []
        self._backwards = 0
        self._mean, self._divisor = False, 0.0
        self._summed: Place | None = None
        self._counted = self._left_out = 0
        self._calls = _Calls()
        self._own: tuple[float, ...] = ()
        self._found: RankGradients | None = None

    @contextlib.contextmanager
    def listening(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """While the step is run again, which lets this optimizer step once."""
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        reduce = dist.all_reduce

        @functools.wraps(reduce)
        def all_reduce(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._calls.is_gradient(tensor) and self._summed is None:
                own, caller = calling_places(2)
                self._summed = caller or own
            return reduce(tensor, *args, **kwargs)

        dist.all_reduce = all_reduce
        try:
            with self._calls:
                yield
        finally:
            if dist.all_reduce is all_reduce:
                dist.all_reduce = reduce

    @contextlib.contextmanager
    def around_backward(self, tensors: Any) -> Iterator[None]:
        """Around each `backward()` of it."""
        self._backwards += 1
        with contextlib.suppress(Exception):  # what is looked at is of torch's inside
            given = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            if len(given) == 1:
                self._mean, self._divisor = _made_as(given[0])
                self._counted, self._left_out = _labels_of(given[0].grad_fn)
        yield
        with contextlib.suppress(Exception):
            self._own = projections([p.grad for p in self._parameters])
            self._calls.gradients = {
                p.grad.data_ptr()
                for p in self._parameters
                if p.grad is not None and is_plain(p.grad)
            }

    def take(self, used: Sequence[torch.Tensor | None]) -> None:
        """The script's own step, which came to the same loss, let its optimizer step with these."""
        if self._own and self._backwards == 1:
            divided = self._calls.divides_gradients or self._calls.divides_loss
            self._found = RankGradients(
                own=self._own,
                used=projections(used),
                mean=self._mean,
                divisor=self._divisor,
                divided_at=resolved(divided) if _by_ranks(divided) else None,
                summed_at=resolved(self._summed),
                counted=self._counted,
                left_out=self._left_out,
                loss_at=resolved(self._calls.compares),
            )

    def facts(self) -> dict[str, Any]:
        return {"rank_gradients": self._found}


class _Calls(TorchFunctionMode):
    """Where scores are compared with labels, and where a loss, or a gradient that backward has
    left, is divided by the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: set[int] = set()
        self.divides_gradients: Place | None = None
        self.divides_loss: Place | None = None
        self.compares: Place | None = None

    @of_function_mode
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = canonical(getattr(func, "__name__", ""))
        if len(args) == 2 and name in FACTORS:
            with contextlib.suppress(Exception):  # a tensor of a class of the user's
                self._look(args[0], args[1], divides=name == "div")
        elif name in CLASSIFICATION:
            own, caller = calling_places(2)
            self.compares = caller or own
        return call(func, *args, **(kwargs or {}))

    def is_gradient(self, value: Any) -> bool:
        """It is one that the last backward has left."""
        return is_plain(value) and value.data_ptr() in self.gradients

    def _look(self, value: Any, by: Any, *, divides: bool) -> None:
        ranks = dist.get_world_size() if dist.is_initialized() else 0
        factor = float(by) if isinstance(by, (int, float)) or _is_number(by) else 0.0
        if not ranks or not isinstance(value, torch.Tensor):
            return
        if not math.isclose(factor, ranks if divides else 1 / ranks):
            return
        own, caller = calling_places(3)
        if self.is_gradient(value):
            self.divides_gradients = self.divides_gradients or caller or own
        elif value.numel() == 1 and value.requires_grad:
            self.divides_loss = caller or own  # the last before backward


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_plain(value) and value.numel() == 1


def _by_ranks(place: Place | None) -> bool:
    """The source divides by a number of ranks: a name says so, or what it was bound to. Any number
    may be as large by chance, such as that of micro-batches."""
    where = resolved(place)
    if place is None or where is None:
        return False
    nodes = nodes_of(place[0].co_filename)
    found = [_divisor(node) for node in nodes if getattr(node, "lineno", 0) == where.line]
    divisors = [divisor for divisor in found if divisor is not None]
    return any(_names_ranks(divisor, nodes) for divisor in divisors)


def _divisor(node: ast.AST) -> ast.expr | None:
    operators = (ast.Div, ast.Mult)
    if isinstance(node, ast.BinOp) and isinstance(node.op, operators):
        return node.right
    if isinstance(node, ast.AugAssign) and isinstance(node.op, operators):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.args[0] if canonical(node.func.attr) in FACTORS else None
    return None


def _names_ranks(divisor: ast.expr, nodes: Sequence[ast.AST]) -> bool:
    if _RANKS.search(ast.unparse(divisor)):
        return True
    names = {node.id for node in ast.walk(divisor) if isinstance(node, ast.Name)}
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
        and _RANKS.search(ast.unparse(node.value))
        for node in nodes
    )


def projections(gradients: Sequence[torch.Tensor | None]) -> tuple[float, ...]:
    """The gradients' first elements, taken as one vector, along four fixed directions."""
    sums = [0.0] * len(_WAVES)
    left = _MOST_IN_ALL
    for number, gradient in enumerate(gradients):
        if gradient is None or not is_plain(gradient) or left <= 0:
            continue
        few = gradient.detach().reshape(-1)[: min(_MOST, left)].double().cpu()
        left -= few.numel()
        places = torch.arange(few.numel(), dtype=torch.float64) + 17 * number
        for wave, frequency in enumerate(_WAVES):
            sums[wave] += float(few @ torch.cos(frequency * places))
    return tuple(sums) if all(map(math.isfinite, sums)) else ()


def _made_as(loss: torch.Tensor) -> tuple[bool, float]:
    """(it is a mean, as the loss function gave it; what such a mean was divided by before it was
    differentiated, 0 for nothing)."""
    made = loss.grad_fn
    if made is None:
        return False, 0.0
    if _is_mean(made):
        return True, 0.0
    if made.name() == "DivBackward0" and _is_mean(made.next_functions[0][0]):
        divisor = getattr(made, "_saved_other", None)
        if isinstance(divisor, torch.Tensor) and divisor.numel() == 1:
            return False, float(divisor)
    return False, 0.0


def _labels_of(made: Any) -> tuple[int, int]:
    """(labels that a mean of cross-entropies counts, labels that it ignores); zeros where it is
    none, or weighs classes."""
    if made is None or not made.name().startswith("NllLoss") or not _is_mean(made):
        return 0, 0
    labels = made._saved_target
    if made._saved_weight is not None or not is_plain(labels):
        return 0, 0
    counted = int((labels != made._saved_ignore_index).sum())
    return counted, labels.numel() - counted


def _is_mean(made: Any) -> bool:
    if made is None:
        return False
    return made.name() == "MeanBackward0" or getattr(made, "_saved_reduction", None) == _MEAN
