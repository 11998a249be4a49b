"""What re-running one step needs, and putting it back.

Between the start of a step and its optimizer the weights don't change, so a rewind copies no
weights. What does change is kept: random states, buffers, train/eval flags, plain attributes of the
user's modules, the scaler, old gradients.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.instrument.torch_private import foreach_copy_
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.closure_state import KeptNetworks, KeptState, reachable
from nanodoc.replay.optimizers import copy_optimizer, copy_tensor, restore_optimizer
from nanodoc.replay.rng import RandomKeeper, RandomState
from nanodoc.tensors.nested import tensors_in
from nanodoc.tensors.packed import PackedCopies
from nanodoc.tensors.plain import without_values

# A buffer this small is copied at every step; a larger one only when its version counter says that
# it changed. Writes through `.data` don't count versions, and the buffers written that way are
# running averages: small ones.
_ALWAYS_COPIED = 65_536
# a longer list in a module's attributes is cut back to its old length, not copied
_LONGEST_LIST = 256


# Module, name, the buffer itself and the copy of its values.
Buffer = tuple[torch.nn.Module, str, torch.Tensor | None, torch.Tensor | None]


@dataclass(slots=True)
class StepState:
    """One step's start. `batches` are the host's own references; `grads` only where a loop keeps
    gradients across steps."""

    step: int
    batches: list[Any]
    rng: RandomState
    buffers: list[Buffer]
    attributes: list[tuple[Any, dict[str, Any], list[tuple[list[Any], list[Any] | int]]]]
    training: list[bool]
    scaler: dict[str, Any] | None
    batch_versions: list[int]
    trainable: list[bool | None]
    """Which parameters want a gradient; None of one that is computed, from what does."""
    grad_enabled: bool
    grads: list[torch.Tensor | None] | None = None
    weights: Collection[torch.Tensor | None] | None = None
    """Copies of the parameters, only where the loop has already stepped past them."""
    optimizers: list[dict[str, Any]] = field(default_factory=list)
    more_scalers: list[tuple[Any, dict[str, Any] | None]] = field(default_factory=list)
    numbers: Mapping[str, Any] | None = None
    """The numbers that a script's loop counts by, by the names of its variables."""
    outside: KeptState | None = None
    """The state that the recipe's functions reach by name; only of a step that is run again."""
    networks: KeptNetworks | None = None
    """Those beside the model, only where steps after this one are run again, too."""
    own: list[Any] | None = None
    """The training's own batches, until it has run the step with them; `batches` are the same
    tensors in containers that it does not write into."""
    drawn: Any = None
    """What a script's step draws from outside of it; complete when the next step begins."""

    @property
    def batch_was_mutated(self) -> bool:
        """True if the step wrote into the batch itself, which then can't be given again."""
        return self.batch_versions != _versions(self.batches)


@dataclass(slots=True)
class BriefStep:
    """A step that is watched by its losses alone: what it takes to run it again after those before
    it, and what it came to. The names are those of `StepState`."""

    step: int
    batches: list[Any]
    rng: RandomState
    batch_versions: list[int]
    groups: list[list[dict[str, Any]]]
    """The parameter groups of each optimizer when it began; the same object as that of the step
    before where nothing in them has changed."""
    training: bool
    """The model's flag."""
    cleared: bool = True
    """As `PastStep.cleared`."""
    indices: Sequence[int] | None = None
    """Those of its samples in the data set, where they are known."""
    numbers: Mapping[str, Any] | None = None
    drawn: Any = None
    loss: float | None = None
    """None of a step that is not over."""
    seconds: float = 0.0
    rates: Mapping[int, list[float | None]] = field(default_factory=dict)
    """As `Observer.rates`."""


class StateKeeper:
    """Takes capsules of one recipe, cheaply: a buffer that didn't change since the last step isn't
    copied again."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._recipe = recipe
        self.scaler: Any = recipe.scaler
        """The GradScaler to keep: the recipe's, or one that a train_step was seen to use."""
        self.more_scalers: list[Any] = []
        """Further ones that it uses."""
        self._device = device
        self._modules = list(recipe.model.modules())
        # torch's own layers hold nothing that a forward pass rebinds; the user's classes may count
        # steps or keep state
        self._own: list[Any] = [
            m for m in self._modules if not type(m).__module__.startswith("torch.nn.")
        ]
        self._own += _owners(recipe)
        # schedulers that a train_step steps by itself
        self._own += [value for value in reachable(recipe) if isinstance(value, LRScheduler)]
        self.named = list(recipe.model.named_parameters())
        """The parameters that capsules are of. A model may grow: what it has got since is nobody's
        but its own."""
        self._parameters = [parameter for _, parameter in self.named]
        self._buffered = [m for m in self._modules if m._buffers]
        self._random = RandomKeeper(device)
        self._slots: dict[tuple[int, str], _Slot] = {}
        self._groups: list[list[dict[str, Any]]] = []
        """Of the last brief step."""

    def take(self, step: int, batches: list[Any], *, apart: bool = False) -> StepState:
        """The capsule of the step about to run. It is good until the next one is taken; `apart`
        leaves that one good too."""
        return StepState(
            step=step,
            batches=batches,
            rng=self._random.take(),
            buffers=self._fresh_buffers() if apart else self._buffers(),
            attributes=[(m, dict(vars(m)), _lists(vars(m))) for m in self._own],
            training=[m.training for m in self._modules],
            scaler=_scaler_tensors(self.scaler),
            more_scalers=[(scaler, _scaler_tensors(scaler)) for scaler in self.more_scalers],
            batch_versions=_versions(batches),
            trainable=[p.requires_grad if p.is_leaf else None for p in self._parameters],
            grad_enabled=torch.is_grad_enabled(),
            numbers=_counted_by(self._recipe.train_step),
            drawn=_drawn_by(self._recipe.train_step),
        )

    def take_briefly(self, step: int, batches: list[Any]) -> BriefStep:
        """What it takes to run the step again after those before it."""
        recipe = self._recipe
        optimizers = recipe.optimizers
        if not _hold(self._groups, optimizers):
            self._groups = [[group.copy() for group in o.param_groups] for o in optimizers]
        return BriefStep(
            step,
            batches,
            self._random.again(),
            _versions(batches),
            self._groups,
            recipe.model.training,
        )

    def complete(self, capsule: StepState) -> None:
        """Adds to a step's start what a step may change beyond what every capsule holds: the state
        that the recipe's functions reach, and, where a train_step moves them, the weights and the
        optimizers. Nothing has changed since the step began, or the capsule holds it already."""
        if capsule.outside is None:
            capsule.outside = KeptState(self._recipe)
        if self._recipe.train_step is not None and capsule.weights is None:
            capsule.weights = copy_weights(self.named)
            capsule.optimizers = [
                copy_optimizer(optimizer) for optimizer in self._recipe.optimizers
            ]

    @contextlib.contextmanager
    def rewound(self, capsule: StepState) -> Iterator[None]:
        """The step's start, before and after: whatever runs inside changes nothing."""
        known = capsule.outside
        self.complete(capsule)
        self.restore(capsule)
        try:
            yield
        finally:
            self.restore(capsule)
            capsule.outside = known  # copies of a teacher are large, and other looks make their own

    def restore(self, capsule: StepState) -> None:  # noqa: C901 - in one place, since the order counts
        """Puts everything back that the step changed. Weights and optimizers only where the capsule
        holds them."""
        with torch.no_grad():
            for module, attributes, lists in capsule.attributes:
                _restore_attributes(module, attributes, lists)
            for module, name, buffer, saved in capsule.buffers:
                module._buffers[name] = buffer
                if buffer is not None and saved is not None and not _is_expanded(buffer):
                    if buffer.shape != saved.shape:
                        buffer.resize_(saved.shape)
                    # .data: the version counter of a buffer that backward saved stays as it was
                    buffer.data.copy_(saved)
            for module, training in zip(self._modules, capsule.training, strict=True):
                module.training = training
            parameters = self._parameters
            for parameter, trainable in zip(parameters, capsule.trainable, strict=True):
                if trainable is None or (not parameter.is_leaf and parameter._is_view()):
                    continue  # a computed one: its graph stays
                if not parameter.is_leaf:
                    parameter.detach_()
                if parameter.requires_grad != trainable:
                    parameter.requires_grad_(trainable)
            if capsule.weights is not None:
                for parameter, saved in zip(parameters, capsule.weights, strict=True):
                    if saved is not None and parameter.shape == saved.shape:
                        parameter.data.copy_(saved)
                    elif saved is not None:  # a net that grew
                        parameter.data = saved.to(parameter.device).clone()
            for parameter, grad in zip(
                parameters, capsule.grads or [None] * len(parameters), strict=True
            ):
                parameter.grad = (
                    grad.clone() if grad is not None and grad.shape == parameter.shape else None
                )
        for optimizer, state in zip(self._recipe.optimizers, capsule.optimizers, strict=False):
            restore_optimizer(optimizer, state)
        if self.scaler is not None and capsule.scaler is not None:
            _restore_scaler(self.scaler, capsule.scaler)
        for scaler, kept in capsule.more_scalers:
            if kept is not None:
                _restore_scaler(scaler, kept)
        for reached in (capsule.outside, capsule.networks):
            if reached is not None:
                reached.restore()
        if capsule.numbers is not None:
            self._recipe.train_step.numbers = capsule.numbers  # type: ignore[union-attr]  # a script's step
        capsule.rng.restore(self._device)
        torch.set_grad_enabled(capsule.grad_enabled)

    def _buffers(self) -> list[Buffer]:
        kept: list[Buffer] = []
        stale: list[_Slot] = []
        for module in self._buffered:
            for name, buffer in module._buffers.items():
                # a lazy module's buffer has no values before its first forward
                if buffer is None or without_values(buffer):
                    kept.append((module, name, buffer, None))
                    continue
                slot = self._slots.get((id(module), name))
                if slot is None or slot.buffer is not buffer or slot.saved.shape != buffer.shape:
                    slot = self._slots[id(module), name] = _Slot(
                        buffer, buffer._version, buffer.detach().clone()
                    )
                elif slot.small or slot.version != buffer._version:
                    slot.version = buffer._version
                    stale.append(slot)
                kept.append((module, name, buffer, slot.saved))
        if stale:
            foreach_copy_([slot.saved for slot in stale], [slot.buffer.detach() for slot in stale])
        return kept

    def _fresh_buffers(self) -> list[Buffer]:
        return [
            (m, n, b, None if b is None or without_values(b) else b.detach().clone())
            for m in self._buffered
            for n, b in m._buffers.items()
        ]


def _counted_by(step: Any) -> Mapping[str, Any] | None:
    """The numbers of a script's loop; an attribute of that name of a recipe's own train_step is
    the user's."""
    return step.numbers if getattr(step, "of_script", False) else None


def _drawn_by(step: Any) -> Any:
    """What a script's step draws from outside of it."""
    return step.recorded if getattr(step, "of_script", False) else None


def _owners(recipe: Recipe) -> list[Any]:
    """The plain objects whose methods the recipe's functions are (a trainer): they may count steps
    too."""
    functions = (recipe.loss_fn, recipe.criterion, recipe.train_step)
    found = []
    for function in functions:
        owner = getattr(function, "__self__", function)
        if (
            not isinstance(owner, (torch.nn.Module, type))
            and not inspect.isroutine(owner)
            and hasattr(owner, "__dict__")
        ):
            found.append(owner)
    return found


class _Slot:
    """A buffer and the copy of it that is refreshed from step to step."""

    __slots__ = ("buffer", "saved", "small", "version")

    def __init__(self, buffer: torch.Tensor, version: int, saved: torch.Tensor) -> None:
        self.buffer, self.version, self.saved = buffer, version, saved
        self.small = buffer.numel() <= _ALWAYS_COPIED


def _is_expanded(buffer: torch.Tensor) -> bool:
    """Several elements share memory, so nobody can have written to it in place."""
    return any(
        size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)
    )


def copy_weights(
    named: Sequence[tuple[str, torch.nn.Parameter]], *, host: bool = False
) -> Collection[torch.Tensor | None]:
    """Copies of the parameters, with `host` in host memory; None for those of lazy modules that
    have no values yet."""
    there = [None if without_values(parameter) else parameter for _, parameter in named]
    return PackedCopies(there, _copied_apart, host=host)


def _copied_apart(parameter: torch.nn.Parameter | None, host: bool) -> torch.Tensor | None:
    return None if parameter is None else copy_tensor(parameter.detach(), host)


def _hold(known: list[list[dict[str, Any]]], optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """The groups hold the very objects that are known of them."""
    if len(known) != len(optimizers):
        return False
    for optimizer, own in zip(optimizers, known, strict=True):
        groups = optimizer.param_groups
        if len(groups) != len(own):
            return False
        for group, then in zip(groups, own, strict=True):
            # the options of a group keep their names
            if len(group) != len(then) or not all(map(is_, group.values(), then.values())):
                return False
    return True


def _versions(batches: Sequence[Any]) -> list[int]:
    found = []
    for tensor in tensors_in(batches):
        found.append(0 if tensor.is_inference() else tensor._version)
    return found


def _lists(attributes: dict[str, Any]) -> list[tuple[list[Any], list[Any] | int]]:
    return [
        (value, list(value) if len(value) <= _LONGEST_LIST else len(value))
        for value in attributes.values()
        if type(value) is list
    ]


def _restore_attributes(
    module: Any, saved: dict[str, Any], lists: list[tuple[list[Any], list[Any] | int]]
) -> None:
    attributes = vars(module)
    for key in [key for key in attributes if key not in saved]:
        del attributes[key]
    attributes.update(saved)
    for value, before in lists:
        if isinstance(before, int):
            del value[before:]
        else:
            value[:] = before


def _scaler_tensors(scaler: Any) -> dict[str, Any] | None:
    if scaler is None:
        return None
    return {
        name: _cloned(getattr(scaler, name, None)) for name in ("_scale", "_growth_tracker")
    } | {
        "_per_optimizer_states": {
            key: dict(value) for key, value in getattr(scaler, "_per_optimizer_states", {}).items()
        }
    }


def _restore_scaler(scaler: Any, saved: dict[str, Any]) -> None:
    for name in ("_scale", "_growth_tracker"):
        if hasattr(scaler, name):
            setattr(scaler, name, _cloned(saved[name]))
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None:
        states.clear()
        states.update({key: dict(value) for key, value in saved["_per_optimizer_states"].items()})


def _cloned(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
