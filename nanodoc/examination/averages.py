"""Networks beside the model that a training moves as an average of it, and whose batch norms it
leaves as they were made."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable

import torch
from torch.optim.swa_utils import AveragedModel

from nanodoc.facts.inspection import StaleAverage
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import NormBase
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import code_of
from nanodoc.replay.closure_state import ReachedState
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_plain, without_values
from nanodoc.trace.files import USER, absolute, frame_kind, line_span
from nanodoc.trace.parsed import nodes_of

_COMPARED = 8  # parameters
_LARGEST = 1 << 20  # elements of one
_NEAR = 0.5  # of the size of the model's weights: two random networks are sqrt(2) of it apart


def stale_averages(recipe: Recipe, first: StepState | None) -> tuple[StaleAverage, ...]:
    """Nothing where one of the objects that a training reaches can't be looked at."""
    with contextlib.suppress(Exception):
        return _stale_averages(recipe, first)
    return ()


def _stale_averages(recipe: Recipe, first: StepState | None) -> tuple[StaleAverage, ...]:
    """Those in eval mode with the model's layers, whose weights have left the model's first ones
    and are near its last, and whose running statistics are still mean 0 and variance 1 where the
    model's are not. One of `torch.optim.swa_utils` has them filled by `update_bn` when all is
    over."""
    model = recipe.model
    if first is None or first.weights is None or not any(map(_has_seen_data, model.modules())):
        return ()
    shapes = _shapes(model)
    found = []
    for name, module in ReachedState(recipe).modules:
        if module is model or isinstance(module, AveragedModel) or _shapes(module) != shapes:
            continue
        layers = [m for m in module.modules() if isinstance(m, NormBase)]
        fresh = [m for m in layers if not m.training and _is_untouched(m)]
        if fresh and len(fresh) == len(layers) and _follows(module, model, first.weights):
            found.append(
                StaleAverage(
                    name=name,
                    layers=len(fresh),
                    layer_type=type(fresh[0]).__name__,
                    averaged_at=_averaged_at(type(module), recipe),
                )
            )
    return tuple(found[:1])


def _has_seen_data(module: torch.nn.Module) -> bool:
    return (
        isinstance(module, NormBase)
        and module.running_mean is not None
        and is_plain(module.running_mean)
        and not _is_untouched(module)
    )


def _is_untouched(module: NormBase) -> bool:
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


def _shapes(module: torch.nn.Module) -> list[torch.Size] | None:
    """None of a module without values, as a lazy one and one on `meta`, and of a sharded one."""
    parameters = list(module.parameters())
    if any(without_values(p) or not is_plain(p) for p in parameters):
        return None
    return [parameter.shape for parameter in parameters]


def _follows(
    module: torch.nn.Module, model: torch.nn.Module, first: Iterable[torch.Tensor | None]
) -> bool:
    """A few of its weights are near the model's, and neither these nor the model's first."""
    apart = size = moved = 0.0
    compared = 0
    with torch.no_grad():
        for own, other, began in zip(module.parameters(), model.parameters(), first, strict=False):
            if own is other:
                return False
            if compared == _COMPARED or began is None or other.numel() > _LARGEST:
                continue
            compared += 1
            there = own.to(other)
            apart += float(torch.linalg.vector_norm(there - other)) ** 2
            moved += float(torch.linalg.vector_norm(there - began.to(other))) ** 2
            size += float(torch.linalg.vector_norm(other)) ** 2
    return moved > 0 and 0 < apart < _NEAR**2 * size


def _averaged_at(kind: type, recipe: Recipe) -> SourceSpan | None:
    """The only line of the user's that goes through the parameters of two modules together."""
    functions = (recipe.train_step, recipe.loss_fn, getattr(kind, "forward", None))
    files = {getattr(code_of(function), "co_filename", "") for function in functions}
    found = [
        line_span(file, node.lineno, "<module>")
        for file in map(absolute, filter(None, files))
        if frame_kind(file) == USER
        for node in nodes_of(file)
        if isinstance(node, ast.For) and _is_of_two(node.iter)
    ]
    return found[0] if len(found) == 1 else None


def _is_of_two(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or getattr(value.func, "id", "") != "zip":
        return False
    names = [getattr(a.func, "attr", "") for a in value.args if isinstance(a, ast.Call)]
    return len(names) == 2 and set(names) <= {"parameters", "named_parameters"}
