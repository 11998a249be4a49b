"""The vital signs of a whole run, put together when it is over: rates, gradients, updates, layers,
parameters."""

from __future__ import annotations

import math
import resource
import statistics
import sys
from collections.abc import Iterator, Sequence

import torch

from nanodoc import accelerator
from nanodoc.facts.inspection import InspectionFacts
from nanodoc.facts.loop import LayerStats, ParameterStats, RunStatistics
from nanodoc.measure.gradients import Vitals
from nanodoc.measure.layers import Sample
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_sharded, local_of, without_values
from nanodoc.tensors.sums import width_over_he

_WIDE = 3.0  # times He's width: whose line is looked up
_ALIKE = 1e-5  # of the largest weight: equal gradients are summed in different orders


def course_stats(
    model: torch.nn.Module,
    rates: Sequence[tuple[float, ...]],
    norms: Sequence[tuple[int, Vitals]],
    samples: Sequence[Sample],
    first: StepState | None,
    inspection: InspectionFacts | None,
    device: torch.device,
    build: BuildFacts,
) -> RunStatistics:
    """`norms` are those of the steps that were kept, `samples` of those that were looked at more
    closely; `first` holds the weights of step 0."""
    by_name: dict[str, list[float]] = {}
    for _, vitals in norms:
        for name, norm in zip(vitals.names, vitals.norms, strict=True):
            by_name.setdefault(name, []).append(norm)
    return RunStatistics(
        rates=tuple(rates),
        group_ratios=tuple((sample.step, sample.group_ratios) for sample in samples),
        kept=tuple((sample.step, sample.kept) for sample in samples if sample.kept is not None),
        parameters=tuple(_parameters(model, by_name, samples, first, build)),
        layers=tuple(_layers(samples, inspection, by_name)),
        sampled=tuple(sample.step for sample in samples),
        peak_memory=peak_memory(device),
    )


def peak_memory(device: torch.device) -> int | None:
    """Bytes: the peak of the accelerator's allocator (None where it keeps none), the process's
    largest resident set on the CPU."""
    if device.type != "cpu":
        return accelerator.peak_memory(device)
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def _parameters(
    model: torch.nn.Module,
    norms: dict[str, list[float]],
    samples: Sequence[Sample],
    first: StepState | None,
    build: BuildFacts,
) -> Iterator[ParameterStats]:
    named = list(model.named_parameters())
    types = {name: type(module).__name__ for name, module in model.named_modules()}
    before = (
        first.weights if first is not None and first.weights is not None else [None] * len(named)
    )
    latest = samples[-1] if samples else None
    with torch.no_grad():
        for (name, parameter), old in zip(named, before, strict=False):
            if (
                without_values(parameter)
                or parameter.layout is not torch.strided
                or not parameter.is_floating_point()
            ):
                continue
            # eight-bit floats can't be measured
            if parameter.itemsize == 1 or not parameter.numel():
                continue
            if is_sharded(parameter) and several_ranks():
                raise RuntimeError("the parameters are sharded across ranks")
            weights = local_of(parameter).detach()
            old = local_of(old) if old is not None else None
            norm = float(weights.float().norm())
            gradient = latest.gradients.get(name) if latest is not None else None
            ratios = [sample.ratios[name] for sample in samples if name in sample.ratios]
            alike = _identical_rows(weights)
            began_alike = old is not None and _identical_rows(old) and bool(old.any())
            own = old is not None and name not in build.made_by_library
            wide = width_over_he(old) if own and old is not None else None
            positive = old is not None and old.dim() > 1 and _is_positive(old)
            yield ParameterStats(
                name=name,
                shape=tuple(parameter.shape),
                trainable=parameter.requires_grad,
                module_type=types.get(name.rpartition(".")[0], ""),
                norm=norm,
                grad_mean=gradient.mean if gradient else None,
                grad_std=gradient.std if gradient else None,
                grad_max=gradient.absmax if gradient else None,
                grad_norm=statistics.median(norms[name]) if name in norms else None,
                ratio=statistics.median(ratios) if ratios else None,
                fastest=max(ratios, default=None),
                moved=_moved(weights, old, put_back=bool(ratios) and min(ratios) > 0),
                identical_rows=alike,
                began_alike=began_alike,
                began_wide=wide,
                began_positive=positive,
                initialised_at=build.initialised_at(name)
                if norm == 0 or alike or began_alike or positive or (wide or 0) > _WIDE
                else None,
            )


def _is_positive(weights: torch.Tensor) -> bool:
    low, high = weights.aminmax()
    return 0 <= float(low) < float(high)


def _layers(
    samples: Sequence[Sample], inspection: InspectionFacts | None, norms: dict[str, list[float]]
) -> Iterator[LayerStats]:
    if not samples:
        return
    dead = (
        {unit.call.module: unit.dead / unit.units for unit in inspection.units if unit.units}
        if inspection is not None
        else {}
    )
    of_module: dict[str, list[float]] = {}
    for name, values in norms.items():
        of_module.setdefault(name.rpartition(".")[0], []).append(statistics.median(values))
    for layer in samples[-1].layers:
        yield LayerStats(
            module=layer.module,
            module_type=layer.module_type,
            mean=layer.mean,
            std=layer.std,
            absmax=layer.absmax,
            zeros=layer.zeros,
            grad_norm=math.hypot(*of_module[layer.module]) if layer.module in of_module else None,
            saturated=layer.saturated,
            dead=dead.get(layer.module),
        )


def _moved(now: torch.Tensor, before: torch.Tensor | None, *, put_back: bool) -> float | None:
    """`put_back`: it moved in each step that was sampled. Where it is as it was all the same, its
    first values were loaded again since, as a search for a learning rate does."""
    if before is None or before.shape != now.shape:
        return None
    was = before.to(now.device)
    if bool(torch.equal(was, now)):
        return None if put_back else 0.0
    size = float(was.float().norm())
    return float((now.float() - was.float()).norm()) / (size or 1.0) or sys.float_info.min


def _identical_rows(weights: torch.Tensor) -> bool:
    if weights.dim() < 2 or weights.shape[0] < 2 or weights[0].numel() < 2:
        return False
    largest = float(weights.abs().max())
    return float((weights - weights[:1]).abs().max()) <= _ALIKE * largest
