"""The tables of `--stats`: what every parameter's gradient and update look like, and every layer's
output, the odd ones first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from rich.text import Text

from nanodoc.facts.loop import LayerStats, ParameterStats, RunStatistics
from nanodoc.text import clean

T = TypeVar("T")
# RULES: ND605 update ratio, ND602 vanishing and ND601 exploding gradients, ND603 dead units, ND604
# saturation.
_RATIO = (1e-5, 1e-1)
_VANISHED, _EXPLODED = 1e-7, 1e3
_DEAD = 0.5
_SATURATED = 0.5
_WIDE = 1e4  # a layer's largest output


def stats_text(stats: RunStatistics) -> Text:
    """Both tables. Without samples (a run of one step) only what every step shows is there."""
    when = f"step {stats.sampled[-1]}" if stats.sampled else "no step was sampled"
    out = Text(f"\nparameters (gradients of {when}, norms over all steps)\n", "bold")
    out.append(
        f"{'grad mean':>11}{'grad std':>11}{'max |g|':>11}{'norm':>11}{'|Δw|/|w|':>11}"
        f"{'moved':>11}  parameter\n"
    )
    for parameter, flags in _by_suspicion(stats.parameters, parameter_flags):
        if parameter.trainable and parameter.grad_norm is None:
            cells = f"{'no gradient':>55}{_number(parameter.moved):>11}"
        elif not parameter.trainable:
            cells = f"{'frozen':>55}{_number(parameter.moved):>11}"
        else:
            values = (
                parameter.grad_mean,
                parameter.grad_std,
                parameter.grad_max,
                parameter.grad_norm,
                parameter.ratio,
                parameter.moved,
            )
            cells = "".join(f"{_number(value):>11}" for value in values)
        out.append(
            f"{cells}  {clean(parameter.name)} {list(parameter.shape)}{_flags(flags)}\n",
            "yellow" if flags else "",
        )
    if stats.layers:
        out.append(f"\nlayers (outputs of {when})\n", "bold")
        out.append(
            f"{'mean':>11}{'std':>11}{'max |y|':>11}{'grad norm':>11}{'zeros':>9}{'flat':>9}"
            f"{'dead':>9}  layer\n"
        )
        for layer, marks in _by_suspicion(stats.layers, layer_flags):
            shares = "".join(
                f"{'' if share is None else f'{share:.1%}':>9}"
                for share in (layer.zeros, layer.saturated, layer.dead)
            )
            cells = (
                "".join(
                    f"{_number(value):>11}"
                    for value in (layer.mean, layer.std, layer.absmax, layer.grad_norm)
                )
                + shares
            )
            out.append(
                f"{cells}  {clean(layer.module) or 'the model'} {clean(layer.module_type)}"
                f"{_flags(marks)}\n",
                "yellow" if marks else "",
            )
    return out


def _by_suspicion(
    items: tuple[T, ...], flags: Callable[[T], tuple[str, ...]]
) -> list[tuple[T, tuple[str, ...]]]:
    """With their flags, those with most flags first, otherwise in the model's order."""
    return sorted(((item, flags(item)) for item in items), key=lambda pair: -len(pair[1]))


def parameter_flags(parameter: ParameterStats) -> tuple[str, ...]:
    """What is odd about one parameter."""
    if not parameter.trainable:
        return ()
    found = []
    norm, matrix = parameter.grad_norm, len(parameter.shape) > 1
    if norm is None:
        found.append("no gradient")
    elif not math.isfinite(norm):
        found.append("NaN" if math.isnan(norm) else "inf")
    elif norm == 0:
        found.append("zero gradient")
    elif matrix and norm / math.sqrt(math.prod(parameter.shape)) < _VANISHED:
        found.append("vanishing")
    elif norm > _EXPLODED:
        found.append("exploding")
    if parameter.moved == 0 and norm:
        found.append("does not change")
    elif (
        matrix
        and parameter.ratio is not None
        and parameter.ratio > 0
        and not _RATIO[0] <= parameter.ratio <= _RATIO[1]
    ):
        found.append("small updates" if parameter.ratio < _RATIO[0] else "large updates")
    if parameter.identical_rows and matrix and parameter.norm:
        found.append("identical units")
    return tuple(found)


def layer_flags(layer: LayerStats) -> tuple[str, ...]:
    """What is odd about one layer's output."""
    found = []
    if not math.isfinite(layer.absmax):
        found.append("NaN" if math.isnan(layer.absmax) else "inf")
    elif layer.zeros == 1:
        found.append("all zero")
    elif layer.std == 0:
        found.append("constant")
    elif layer.absmax > _WIDE:
        found.append("large")
    if layer.dead is not None and layer.dead > _DEAD:
        found.append("dead")
    if layer.saturated is not None and layer.saturated > _SATURATED:
        found.append("saturated")
    return tuple(found)


def _flags(flags: tuple[str, ...]) -> str:
    return f"  ← {', '.join(flags)}" if flags else ""


def _number(value: float | None) -> str:
    if value is None:
        return "·"
    return (
        f"{value:.2e}"
        if value and math.isfinite(value) and not 1e-2 <= abs(value) < 1e3
        else f"{value:.3g}"
    )
