"""Networks beside the model that a training moves as an average of it, and whose batch norms it
leaves as they were made."""

from __future__ import annotations

import ast
import os

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.swa_utils import AveragedModel

from nanodoc.facts.inspection import StaleAverage
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import code_of
from nanodoc.replay.closure_state import ReachedState
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import nodes_of

_NEAR = 0.5  # of the size of the model's weights


def stale_averages(recipe: Recipe) -> tuple[StaleAverage, ...]:
    """Those in eval mode with the model's layers and other weights, whose running statistics are
    still mean 0 and variance 1 where the model's are not. One of `torch.optim.swa_utils` has them
    filled by `update_bn` when all is over."""
    model = recipe.model
    moving = [m for m in model.modules() if _is_tracking(m)]
    if not any(not _is_untouched(module) for module in moving):
        return ()
    shapes = _shapes(model)
    found = []
    for name, module in ReachedState(recipe).modules:
        if module is model or isinstance(module, AveragedModel) or _shapes(module) != shapes:
            continue
        layers = [m for m in module.modules() if _is_tracking(m)]
        fresh = [m for m in layers if not m.training and _is_untouched(m)]
        if fresh and len(fresh) == len(layers) and _follows(module, model):
            found.append(
                StaleAverage(
                    name=name,
                    layers=len(fresh),
                    layer_type=type(fresh[0]).__name__,
                    averaged_at=_averaged_at(type(module), recipe),
                )
            )
    return tuple(found[:1])


def _is_tracking(module: torch.nn.Module) -> bool:
    return isinstance(module, _NormBase) and module.running_mean is not None


def _is_untouched(module: torch.nn.Module) -> bool:
    assert isinstance(module, _NormBase)
    mean, variance = module.running_mean, module.running_var
    if mean is None or variance is None:
        return False
    return not bool(mean.any()) and bool((variance == 1).all())


def _shapes(module: torch.nn.Module) -> list[torch.Size]:
    return [parameter.shape for parameter in module.parameters()]


def _follows(module: torch.nn.Module, model: torch.nn.Module) -> bool:
    """Its weights are near the model's, and not the same: two random networks are sqrt(2) of their
    size apart."""
    apart = size = 0.0
    with torch.no_grad():
        for own, other in zip(module.parameters(), model.parameters(), strict=True):
            if own is other:
                return False
            apart += float((own.to(other.device) - other).square().sum())
            size += float(other.square().sum())
    return 0 < apart < _NEAR**2 * size


def _averaged_at(kind: type, recipe: Recipe) -> SourceSpan | None:
    """The only line of the user's that goes through the parameters of two modules together."""
    functions = (recipe.train_step, recipe.loss_fn, getattr(kind, "forward", None))
    files = {getattr(code_of(function), "co_filename", "") for function in functions}
    found = [
        line_span(file, node.lineno, "<module>")
        for file in map(os.path.abspath, filter(None, files))
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
