"""What a script trains, found among the objects that are alive: no hook of torch's is needed for
it, which a compiler would trace into."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from nanodoc.recipe.recipe import Recipe
from nanodoc.script.recovered import RecoveredStep

_OUR_OWN = "nanodoc."


@dataclass(slots=True)
class Trained:
    """The recipe of it, without data."""

    recipe: Recipe
    device: torch.device
    more_scalers: list[Any] = field(default_factory=list)
    _versions: list[tuple[torch.nn.Parameter, int, int]] = field(default_factory=list)

    def stale(self) -> bool:
        """Other optimizers have been made since."""
        return {id(o) for o in _optimizers(gc.get_objects())} != {
            id(o) for o in self.recipe.optimizers
        }

    def moved(self) -> bool:
        """Weights have been written to since this was made."""
        return any(p._version != v or p.data_ptr() != a for p, v, a in self._versions)


def what_is_trained(names: Mapping[str, Any], step: RecoveredStep) -> Trained:
    """The modules that own what the optimizers train, as one model; `names` are the script's
    variables, which name them. Without optimizers, every module with trainable parameters."""
    alive = gc.get_objects()
    optimizers = _optimizers(alive)
    scalers = [o for o in alive if issubclass(type(o), GradScaler) and o.is_enabled()]
    roots = _roots(alive, optimizers)
    model = roots[0] if len(roots) == 1 else _together(roots, names)
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else torch.device("cpu")
    recipe = Recipe(
        model=model,
        data=[],
        optimizer=optimizers or None,
        train_step=step,
        scaler=scalers[0] if scalers else None,
    )
    versions = [(p, p._version, p.data_ptr()) for p in parameters] if not optimizers else []
    return Trained(recipe, device, scalers[1:], versions)


def _optimizers(alive: list[Any]) -> list[torch.optim.Optimizer]:
    """Those that hold parameters themselves; a wrapper shows another's."""
    found = [o for o in alive if issubclass(type(o), torch.optim.Optimizer)]
    inner = [
        o for o in found if not issubclass(type(vars(o).get("optimizer")), torch.optim.Optimizer)
    ]
    return [o for o in inner if "param_groups" in vars(o)]


def _roots(alive: list[Any], optimizers: list[torch.optim.Optimizer]) -> list[torch.nn.Module]:
    own = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]}
    modules = [
        o
        for o in alive
        if issubclass(type(o), torch.nn.Module) and "_modules" in vars(o) and not _is_ours(o)
    ]
    inner = {id(child) for module in modules for child in module._modules.values()}
    return [
        module
        for module in modules
        if id(module) not in inner
        and any((id(p) in own) if own else p.requires_grad for p in module.parameters())
    ]


def _is_ours(module: torch.nn.Module) -> bool:
    return isinstance(module, _Several)


class _Several(torch.nn.ModuleDict):
    """Modules that are trained together, by the names of the script's variables."""


def _together(roots: list[torch.nn.Module], names: Mapping[str, Any]) -> torch.nn.Module:
    called = {id(value): name for name, value in reversed(list(names.items())) if "." not in name}
    several = _Several()
    for position, root in enumerate(roots):
        name = called.get(id(root), f"module{position}")
        # written past __setattr__ and add_module: nothing of the user's is told of it
        several._modules[name if name not in several._modules else f"module{position}"] = root
    return several
