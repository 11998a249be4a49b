"""What a script trains, found among the objects that are alive: no hook of torch's is needed for
it, which a compiler would trace into."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from nanodoc.instrument.originals import ours
from nanodoc.recipe.build_order import KeptAlive
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.local_collectives import fingerprints, several_ranks
from nanodoc.script.recovered import RecoveredStep
from nanodoc.tensors.nested import tensor_leaves
from nanodoc.tensors.plain import is_sharded, without_values
from nanodoc.trace.files import LIBRARY, USER, frame_kind
from nanodoc.trace.frame_variables import variables_of_frame
from nanodoc.trace.spans import Place

_OUR_OWN = "nanodoc."


@dataclass(slots=True)
class Trained:
    """The recipe of it, without data."""

    recipe: Recipe
    device: torch.device
    more_scalers: list[Any] = field(default_factory=list)
    _values: list[tuple[torch.nn.Parameter, torch.Tensor]] = field(default_factory=list)

    @property
    def scaled(self) -> bool:
        """A loss scaler leaves steps out whose gradients are not finite."""
        return self.recipe.scaler is not None

    def moved(self) -> bool:
        """Weights have been written to since this was made."""
        return any(not torch.equal(_first(p), values) for p, values in self._values)


def _first(parameter: torch.nn.Parameter) -> torch.Tensor:
    """A few of its values."""
    return parameter.detach().reshape(-1)[:16].clone()


@dataclass(slots=True)
class Made:
    """Optimizers and loss scalers that the script has made, as long as they live."""

    _made: list[weakref.ref[Any]] = field(default_factory=list)
    _places: list[Place | None] = field(default_factory=list)
    started: dict[int, str] = field(default_factory=dict)
    """Of one of several ranks: digests of what optimizers hold, before any of them has stepped, by
    the parameters' identity."""

    @ours
    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to step."""
        self.note(optimizer)
        if not self.started and several_ranks():
            held = [o for o in self.optimizers() if not any(map(is_sharded, _parameters(o)))]
            named = [(str(id(p)), p) for o in held for p in _parameters(o)]
            found = fingerprints(named)
            self.started = {id(p): d for (_, p), (_, d) in zip(named, found, strict=False)}

    def note(self, made: Any, place: Place | None = None) -> None:
        """One has been made at `place`, or has turned up."""
        if any(ref() is made for ref in self._made):
            return
        self._made.append(weakref.ref(made))
        self._places.append(place)

    def places(self) -> dict[int, Place]:
        """Where each was made, by its id."""
        pairs = zip(self._made, self._places, strict=True)
        return {id(o): place for ref, place in pairs if (o := ref()) is not None and place}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Those that hold parameters themselves; a wrapper shows another's."""
        found = [o for o in self._alive() if isinstance(o, torch.optim.Optimizer)]
        return [
            o
            for o in found
            if "param_groups" in vars(o)
            and not isinstance(vars(o).get("optimizer"), torch.optim.Optimizer)
        ]

    def scalers(self) -> list[Any]:
        """Those that scale."""
        return [o for o in self._alive() if isinstance(o, GradScaler) and o.is_enabled()]

    def _alive(self) -> list[Any]:
        return [made for ref in self._made if (made := ref()) is not None]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    held = [p for group in optimizer.param_groups for p in group["params"]]
    return [p for p in held if not without_values(p)]


def what_is_trained(names: Mapping[str, Any], made: Made, step: RecoveredStep) -> Trained:
    """The modules that own what the optimizers train, as one model; `names` are the script's
    variables, which name them. Without optimizers, the modules with trainable parameters among the
    variables. Tensors that belong to no module (`W = torch.randn(…, requires_grad=True)`) are
    parameters of that model."""
    optimizers, scalers = made.optimizers(), made.scalers()
    roots = _roots(gc.get_objects() if optimizers else list(names.values()), optimizers)
    given_up = _given_up(roots, optimizers)
    if given_up and len(given_up) == len(roots):
        # all that the optimizers were given has gone out of use: the variables tell
        roots = [root for root in _roots(list(names.values()), []) if root not in given_up]
    else:
        roots = [root for root in roots if root not in given_up]
    loose = _loose(names, optimizers, [*roots, *given_up])
    model = roots[0] if len(roots) == 1 and not loose else _together(roots, loose, names)
    parameters = list(model.parameters())
    device = parameters[0].device if parameters else torch.device("cpu")
    recipe = Recipe(
        model=model,
        data=[],
        optimizer=optimizers or None,
        train_step=step,
        scaler=scalers[0] if scalers else None,
    )
    # writes through .data count no versions
    values = [(p, _first(p)) for p in parameters] if not optimizers else []
    return Trained(recipe, device, scalers[1:], values)


def _roots(alive: list[Any], optimizers: list[torch.optim.Optimizer]) -> list[torch.nn.Module]:
    """In the order in which the optimizers were given their parameters: that of the objects alive
    is another in every process, and a snapshot names them by their position."""
    stepped = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    own = {id(p): position for position, p in reversed(list(enumerate(stepped)))}
    # by identity: a metaclass may make its classes unhashable
    kinds = {id(kind): kind for kind in map(type, alive)}
    kinds = {i: kind for i, kind in kinds.items() if issubclass(kind, torch.nn.Module)}
    found = {id(o): o for o in alive if id(type(o)) in kinds}  # a module may have several names
    modules = [o for o in found.values() if "_modules" in vars(o) and not _is_ours(o)]
    inner = {id(child) for module in modules for child in module._modules.values()}
    roots = [
        module
        for module in modules
        if id(module) not in inner
        and any((id(p) in own) if own else p.requires_grad for p in module.parameters())
    ]
    if own:
        roots.sort(key=lambda r: min(own.get(id(p), len(stepped)) for p in r.parameters()))
    return roots


def _given_up(
    roots: list[torch.nn.Module], optimizers: list[torch.optim.Optimizer]
) -> list[torch.nn.Module]:
    """Those that nobody but an optimizer, by their parameters, and nanodoc hold, and that got no
    gradient: a head that another one has replaced."""
    idle = [r for r in roots if all(p.grad is None for p in r.parameters())]
    if not optimizers or not idle:
        return []
    return [root for root in idle if not _is_held(root, (roots, idle))]


def _is_held(module: torch.nn.Module, ours: tuple[object, ...]) -> bool:
    held = any(
        not isinstance(holder, (KeptAlive, FrameType)) and all(holder is not own for own in ours)
        for holder in gc.get_referrers(module)
    )
    return held or _is_local(module)


def _is_local(module: torch.nn.Module) -> bool:
    """A variable of a function that runs: what holds that is not among its referrers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        theirs = frame_kind(frame.f_code.co_filename) in (USER, LIBRARY)
        if theirs and any(value is module for value in variables_of_frame(frame).values()):
            return True
        frame = frame.f_back
    return False


def _loose(
    names: Mapping[str, Any],
    optimizers: list[torch.optim.Optimizer],
    roots: list[torch.nn.Module],
) -> dict[str, torch.Tensor]:
    """Trained tensors that belong to none of the modules, by the names of the variables that hold
    them: what the optimizers hold, or, without one, the leaves that want a gradient."""
    owned = {id(parameter) for root in roots for parameter in root.parameters()}
    stepped = {id(p): p for o in optimizers for group in o.param_groups for p in group["params"]}
    found: dict[str, torch.Tensor] = {}
    # a variable of its own names a tensor better than its place in a list
    direct = {n: value for n, value in names.items() if isinstance(value, torch.Tensor)}
    for name, tensor in (
        *direct.items(),
        *(
            (path, tensor)
            for variable, value in names.items()
            if isinstance(value, (list, tuple, dict))
            for path, tensor in tensor_leaves(value, variable)
        ),
        *((f"tensor{position}", tensor) for position, tensor in enumerate(stepped.values())),
    ):
        trained = id(tensor) in stepped if optimizers else tensor.is_leaf and tensor.requires_grad
        if trained and id(tensor) not in owned:
            owned.add(id(tensor))
            # a parameter's name holds no dots
            key = name.replace(".", "_")
            found[key if key not in found else f"{key}_{len(found)}"] = tensor
    return found


def _is_ours(module: torch.nn.Module) -> bool:
    return isinstance(module, Several)


class Several(torch.nn.ModuleDict):
    """Modules that are trained together, by the names of the script's variables."""

    def name_as(self, state: Mapping[str, Any]) -> None:
        """Names the modules as the state_dict of another process does. They come in the same
        order, but that process may have looked for them among other variables."""
        theirs = list(dict.fromkeys(str(key).partition(".")[0] for key in state))
        loose, own = list(self._parameters), list(self._modules)
        if len(theirs) != len(loose) + len(own) or set(own) == set(theirs[len(loose) :]):
            return
        values = list(self._modules.values())
        self._modules.clear()
        self._modules.update(zip(theirs[len(loose) :], values, strict=True))


def _together(
    roots: list[torch.nn.Module], loose: Mapping[str, torch.Tensor], names: Mapping[str, Any]
) -> torch.nn.Module:
    called = {id(value): name for name, value in reversed(list(names.items())) if "." not in name}
    several = Several()
    for position, root in enumerate(roots):
        name = called.get(id(root), f"module{position}")
        # written past __setattr__ and add_module: nothing of the user's is told of it
        several._modules[name if name not in several._modules else f"module{position}"] = root
    several._parameters.update(loose)  # type: ignore[arg-type]  # parameters() gives any tensor
    return several
