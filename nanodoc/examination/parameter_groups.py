"""Who owns which parameter: the model, an optimizer, both, or neither. Looked at when the run
begins and when it ends."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from threading import get_ident
from typing import Any

import torch

from nanodoc.examination.frozen_layers import (
    adapters_at,
    frozen_at_zero,
    frozen_head,
    frozen_twice,
    head_beside_adapters,
)
from nanodoc.examination.step_gradients import StepGradients, norm_of
from nanodoc.facts.graph import (
    FrozenFacts,
    OwnedParameter,
    OwnershipFacts,
    RepeatedModule,
    UnregisteredModule,
    unregistered_name,
)
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.tensors.plain import without_values
from nanodoc.tensors.sums import fingerprint

_DEPTH = 3
_MOST_ITEMS = 256
_CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
_NORMS = ("Norm",)


class Ownership:
    """One recipe's parameters. `begin()` before the first step, `facts()` after the last."""

    def __init__(self, recipe: Recipe, build: BuildFacts) -> None:
        self._recipe = recipe
        self._build = build
        self._model = recipe.model
        self._marks: dict[str, tuple[float, float]] = {}
        self._left: dict[str, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._stepped: list[torch.optim.Optimizer] = []
        self._before_steps = StepGradients()
        self._thread = get_ident()
        self.closed = False
        """The model has been changed since the last step: nothing is known of who owns what."""

    def begin(self) -> None:
        """Remembers the values of parameters that no optimizer holds, so that one moved by hand can
        be told, and the gradients that an earlier training has left in them."""
        missing = self._missing()
        self._marks = {name: fingerprint(parameter) for name, parameter in missing}
        self._left = {
            name: (weakref.ref(parameter.grad), parameter.grad._version)
            for name, parameter in missing
            if parameter.grad is not None
        }

    def saw_stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer steps, perhaps one that neither the recipe nor build() knew."""
        if self._stepped and optimizer is self._stepped[-1] and self._before_steps.over:
            return
        if all(optimizer is not known for known in self._stepped):
            self._stepped.append(optimizer)
        if get_ident() != self._thread:
            return  # the gradients change while they would be looked at
        self._before_steps.note(
            lambda: [(n, p) for n, p in self._missing() if not self._is_left(n, p.grad)]
        )

    def facts(self, steps: int) -> OwnershipFacts:
        """What is known after `steps` steps; gradients are those the last step left."""
        if self.closed:
            return OwnershipFacts(steps=steps, optimizers=())
        optimizers = self._optimizers()
        missing = tuple(self._owned(name, p) for name, p in self._missing()) if optimizers else ()
        # those first that step: others may be an earlier training's
        ordered = sorted(self._recipe.optimizers, key=self._is_idle)
        return OwnershipFacts(
            steps=steps,
            optimizers=tuple(map(self._build.optimizer_built_at, ordered)),
            idle=tuple(
                all(p.grad is None for group in optimizer.param_groups for p in group["params"])
                for optimizer in ordered
            ),
            shared=tuple(
                any(held_by(one) <= held_by(other) for other in ordered if other is not one)
                for one in ordered
            ),
            missing=missing,
            stale=tuple(self._stale(optimizers)),
            numbers=self._numbers(optimizers),
            replaced_at=tuple(self._build.replaced_at(owned.name for owned in missing)),
            unregistered=tuple(self._unregistered(optimizers)),
            repeated=tuple(self._repeated()),
            frozen=self._frozen(optimizers),
        )

    def _is_idle(self, optimizer: torch.optim.Optimizer) -> bool:
        return all(optimizer is not stepped for stepped in self._stepped)

    # -- optimizers --------------------------------------------------------------------------------

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        found: list[torch.optim.Optimizer] = []
        for optimizer in [*self._recipe.optimizers, *self._build.built, *self._stepped]:
            if all(optimizer is not other for other in found):
                found.append(optimizer)
        return found

    def _missing(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Trainable parameters, of the model or of modules the loss function uses, that no
        optimizer holds."""
        held = held_by(*self._optimizers())
        named = [*self._model.named_parameters(), *self._beside_the_model()]
        return [
            (n, p)
            for n, p in named
            if p.requires_grad and id(p) not in held and not without_values(p)
        ]

    def _owned(self, name: str, parameter: torch.nn.Parameter) -> OwnedParameter:
        modules = dict(self._model.named_modules())
        module = name.rpartition(".")[0]
        before = self._marks.get(name)
        return OwnedParameter(
            name=name,
            module=module,
            module_type=type(modules[module]).__name__ if module in modules else "",
            shape=tuple(parameter.shape),
            gradient=(None if self._is_left(name, parameter.grad) else norm_of(parameter.grad))
            or self._before_steps.norm(name),
            registered_at=self._build.registered_at(name),
            optimizer_before=self._build.optimizer_before(name),
            loaded=name in self._build.loaded,
            moved=before is not None and before != fingerprint(parameter),
        )

    def _is_left(self, name: str, gradient: torch.Tensor | None) -> bool:
        """It was there before the first step, and nothing was added to it since."""
        left, version = self._left.get(name, (None, 0))
        if left is None or gradient is None:
            return False
        return left() is gradient and gradient._version == version

    def _stale(self, optimizers: list[torch.optim.Optimizer]) -> Iterator[OwnedParameter]:
        """Tensors of optimizers that belong to no module in sight and never got a gradient."""
        known = {id(p) for p in self._model.parameters()} | {
            id(p) for _, p in self._beside_the_model()
        }
        known |= {id(p) for _, _, _, item in self._hidden() for p in item.parameters()}
        for position, optimizer in enumerate(optimizers):
            for group in optimizer.param_groups:
                for number, parameter in enumerate(group["params"]):
                    if id(parameter) not in known and parameter.grad is None:
                        yield OwnedParameter(
                            name=f"optimizer {position}, tensor {number}",
                            module="",
                            module_type="",
                            shape=tuple(parameter.shape),
                        )

    def _numbers(self, optimizers: list[torch.optim.Optimizer]) -> int:
        own = {id(p) for p in self._model.parameters()}
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        return sum(id(p) not in own and p.numel() == 1 for p in held)

    def _beside_the_model(self) -> list[tuple[str, torch.nn.Parameter]]:
        """Parameters of modules that the loss function or train_step reach by a variable, and which
        the model doesn't have."""
        inside = {id(module) for module in self._model.modules()}
        found: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for function in (self._recipe.loss_fn, self._recipe.criterion, self._recipe.train_step):
            for name, module in _modules_of(function):
                if id(module) not in inside:
                    for path, parameter in module.named_parameters():
                        found.setdefault(id(parameter), (f"{name}.{path}", parameter))
        known = {id(p) for p in self._model.parameters()}
        return [pair for key, pair in found.items() if key not in known]

    # -- modules -----------------------------------------------------------------------------------

    def _hidden(self) -> Iterator[tuple[str, torch.nn.Module, str, _Item]]:
        """(owner's path, owner, attribute, item) for everything in plain containers that the model
        doesn't have."""
        inside = {id(module) for module in self._model.modules()} | {
            id(p) for p in self._model.parameters()
        }
        for path, owner in self._model.named_modules():
            if type(owner).__module__.startswith("torch.distributed."):
                continue  # a wrapper's own bookkeeping
            for attribute, value in list(vars(owner).items()):
                if attribute in ("_parameters", "_buffers", "_modules") or attribute.endswith(
                    "_hooks"
                ):
                    continue
                for item in _inside(value):
                    if id(item.value) not in inside:
                        yield path, owner, attribute, item

    def unregistered_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters in plain containers, each with the name of where they are kept:
        `unregistered:encoder.layers`."""
        for path, _, attribute, item in self._hidden():
            for parameter in item.parameters():
                yield unregistered_name(path, attribute), parameter

    def _unregistered(
        self, optimizers: list[torch.optim.Optimizer]
    ) -> Iterator[UnregisteredModule]:
        held = held_by(*optimizers)
        groups: dict[tuple[str, str], list[_Item]] = {}
        owners: dict[str, torch.nn.Module] = {}
        known = {id(p) for p in self._model.parameters()}
        for path, owner, attribute, item in self._hidden():
            groups.setdefault((path, attribute), []).append(item)
            owners[path] = owner
        for (path, attribute), items in groups.items():
            parameters = {
                id(p): p
                for item in items
                for p in item.parameters()
                if p.requires_grad and id(p) not in known
            }
            if not parameters:
                continue
            owner = owners[path]
            yield UnregisteredModule(
                owner=path,
                owner_type=type(owner).__name__,
                attribute=attribute,
                container=type(vars(owner)[attribute]).__name__,
                types=tuple(dict.fromkeys(item.kind for item in items)),
                parameters=sum(p.numel() for p in parameters.values()),
                tensors=len(parameters),
                assigned_at=self._build.assigned_at(owner, attribute),
                with_gradient=sum(1 for p in parameters.values() if norm_of(p.grad)),
                in_optimizer=all(key in held for key in parameters),
            )

    def _repeated(self) -> Iterator[RepeatedModule]:
        for path, container in self._model.named_modules():
            if not isinstance(container, _CONTAINERS):
                continue
            places: dict[int, list[str]] = {}
            for key, child in container._modules.items():
                if child is not None and any(True for _ in child.parameters()):
                    places.setdefault(id(child), []).append(key)
            for keys in places.values():
                if len(keys) > 1:
                    child = container._modules[keys[0]]
                    assert child is not None
                    yield RepeatedModule(
                        container=path,
                        container_type=type(container).__name__,
                        module_type=type(child).__name__,
                        positions=tuple(f"{path}.{key}" if path else key for key in keys),
                        parameters=sum(p.numel() for p in child.parameters()),
                        registered_at=self._build.assigned_at(container, keys[1]),
                    )

    # -- frozen ------------------------------------------------------------------------------------

    def _frozen(self, optimizers: list[torch.optim.Optimizer]) -> FrozenFacts | None:
        named = list(self._model.named_parameters())
        frozen = [(name, p) for name, p in named if not p.requires_grad]
        ineffective = tuple(self._ineffective())
        if not frozen and not ineffective:
            return None
        held = held_by(*optimizers)
        trainable = [name for name, p in named if p.requires_grad]
        modules = dict(self._model.named_modules())
        kinds = {type(modules[name.rpartition(".")[0]]).__name__ for name in trainable}
        beside = head_beside_adapters(self._model, self._build)
        head = frozen_head(self._model, self._build) or beside
        zero = frozen_at_zero(self._model, self._build) if trainable else ()
        lines = [line for name, _ in frozen if (line := self._build.frozen_at(name)) is not None]
        return FrozenFacts(
            frozen=len(frozen),
            trainable=len(trainable),
            tensors=tuple(name for name, _ in frozen),
            frozen_at=next(map(self._build.frozen_at, [*head[-1:], *zero[:1]]), None)
            or (adapters_at() if beside else None)
            or (lines[-1] if lines else None),
            only_norms_train=bool(trainable)
            and all(any(word in kind for word in _NORMS) for kind in kinds),
            head_frozen=_common_path(head) if head else None,
            head_frozen_parameter=head[-1] if head else None,
            beside_adapters=bool(beside),
            zero=zero,
            twice=frozen_twice(self._model, self._build) if trainable else None,
            in_optimizer=any(id(p) in held for _, p in frozen),
            ineffective=ineffective,
        )

    def _ineffective(self) -> Iterator[tuple[str, str, SourceSpan | None]]:
        for path, module in self._model.named_modules():
            if vars(module).get("requires_grad") is False and any(
                p.requires_grad for p in module.parameters()
            ):
                yield path, type(module).__name__, self._build.assigned_at(module, "requires_grad")


class _Item:
    """A module, or a lone parameter, found in a plain container."""

    def __init__(self, value: torch.nn.Module | torch.nn.Parameter) -> None:
        self.value = value
        self.kind = type(value).__name__

    def parameters(self) -> list[torch.nn.Parameter]:
        return (
            [self.value]
            if isinstance(self.value, torch.nn.Parameter)
            else list(self.value.parameters())
        )


def _inside(value: Any, depth: int = _DEPTH) -> Iterator[_Item]:
    """Modules and parameters in plain containers, and in the attributes of plain objects."""
    if isinstance(value, (torch.nn.Module, torch.nn.Parameter)):
        yield _Item(value)
    elif isinstance(value, (list, tuple, set, frozenset)) and depth:
        for item in islice(value, _MOST_ITEMS):  # a class of the user's may refuse its length
            yield from _inside(item, depth - 1)
    elif isinstance(value, dict) and depth:
        for item in list(value.values())[:_MOST_ITEMS]:
            yield from _inside(item, depth - 1)
    elif (
        depth
        and hasattr(value, "__dict__")
        and not isinstance(value, (type, torch.Tensor, torch.optim.Optimizer))
        and not callable(value)
    ):
        for item in list(vars(value).values())[:_MOST_ITEMS]:
            # ever fewer levels: objects may refer to each other in a circle
            yield from _inside(item, min(depth - 1, 1))


def held_by(*optimizers: torch.optim.Optimizer) -> set[int]:
    """The ids of the parameters that the optimizers hold."""
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    return {id(parameter) for group in groups for parameter in group["params"]}


def _modules_of(function: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Modules that a function reaches by a closure or a global, or that it is itself."""
    if isinstance(function, torch.nn.Module):
        yield type(function).__name__, function
        return
    for name, _, value in variables_of(function):
        if isinstance(value, torch.nn.Module):
            yield name, value


def _common_path(names: list[str]) -> str:
    """The module that holds all of these parameters."""
    paths = [name.split(".")[:-1] for name in names]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    return ".".join(common)
