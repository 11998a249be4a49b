"""Looks at parameters, buffers and optimizer state outside a step: before the first, and after an
optimizer's."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.facts.ops import OptimizerFacts, ParameterFacts, TensorFacts
from nanodoc.measure.gradients import nonfinite_tensors
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.plain import without_values
from nanodoc.trace.examine import tensor_facts

# Optimizer states that end up in a denominator (torch.optim: Adam family, RMSprop, Adagrad,
# Adadelta).
_DENOMINATORS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf")


def sick_before_start(model: torch.nn.Module, facts: BuildFacts) -> list[ParameterFacts]:
    """Parameters with a NaN or inf, buffers with a NaN, and parameters whose memory nobody ever
    wrote to."""
    modules = {path: type(module).__name__ for path, module in model.named_modules()}
    parameters = [(n, p) for n, p in model.named_parameters() if not without_values(p)]
    buffers = list(model.named_buffers())
    bad = set(nonfinite_tensors([*parameters, *buffers]))
    found = []
    for kind, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named:
            never = name in facts.never_written
            if name not in bad and not never:
                continue
            seen = tensor_facts(tensor, f"{kind} {name}")
            # an inf in a buffer is a mask; one that is filled later hurts nobody
            if kind == "buffer" and not seen.nan:
                continue
            path = name.rpartition(".")[0]
            found.append(
                ParameterFacts(
                    name=name,
                    kind=kind,
                    facts=seen,
                    module=path,
                    module_type=modules.get(path),
                    registered_at=facts.registered_at(name),
                    never_written=never,
                )
            )
    return found


def optimizer_facts(recipe: Recipe, bad: set[str], facts: BuildFacts) -> tuple[OptimizerFacts, ...]:
    """For each optimizer that owns one of the parameters named in `bad`: what it is and what its
    state holds there."""
    names = {id(p): name for name, p in recipe.model.named_parameters()}
    found = []
    for index, optimizer in enumerate(recipe.optimizers):
        owned = [p for group in optimizer.param_groups for p in group["params"]]
        hurt = [p for p in owned if names.get(id(p)) in bad]
        if not hurt:
            continue
        zeros, states = _denominators(optimizer, hurt)
        group = next(g for g in optimizer.param_groups if any(p is hurt[0] for p in g["params"]))
        found.append(
            OptimizerFacts(
                index=index,
                type=type(optimizer).__name__,
                hyperparameters={
                    k: v
                    for k, v in group.items()
                    if isinstance(v, (int, float, bool)) or k == "betas"
                },
                built_at=facts.optimizer_built_at(optimizer),
                parameters=tuple(names[id(p)] for p in hurt),
                total_parameters=len(owned),
                dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in hurt})),
                state_zeros=zeros,
                state_facts=states,
            )
        )
    return tuple(found)


def _denominators(
    optimizer: torch.optim.Optimizer, hurt: list[Any]
) -> tuple[int, tuple[TensorFacts, ...]]:
    zeros, states = 0, list[TensorFacts]()
    for parameter in hurt:
        for name, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                continue
            if len(states) < 8:
                states.append(tensor_facts(value, name))
            if name in _DENOMINATORS and value.shape == parameter.shape:
                zeros += int(((value == 0) & ~torch.isfinite(parameter)).sum())
    return zeros, tuple(states)
