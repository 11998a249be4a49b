"""Copies of an optimizer's state and options, and its learning rates."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from nanodoc.facts.crash import StateFacts
from nanodoc.instrument.taps import AFTER_STEP, BEFORE_STEP, listening
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.packed import PackedState

_ADAPTIVE = {"betas", "alpha", "rho", "lr_decay"}  # options of Adam, RMSprop, Adadelta, Adagrad


def copy_optimizer(optimizer: torch.optim.Optimizer, *, host: bool = False) -> dict[str, Any]:
    """A copy of an optimizer's state and of its groups' options, with `host` in host memory. The
    groups themselves are remembered: some may be added later."""
    state = PackedState(optimizer.state.items(), copied, host=host)
    groups = [
        (group, list(group["params"]), {k: copied(v) for k, v in group.items() if k != "params"})
        for group in optimizer.param_groups
    ]
    return {"state": state, "groups": groups}


def restore_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Puts back what `copy_optimizer` took; the copy itself stays untouched."""
    now = dict(optimizer.state)
    optimizer.state.clear()
    for parameter, state in saved["state"].items():
        before = now.get(parameter)
        if isinstance(state, dict):
            known = before if isinstance(before, dict) else {}
            optimizer.state[parameter] = {
                k: _there(copied(v), known.get(k), parameter) for k, v in state.items()
            }
        else:
            optimizer.state[parameter] = _there(copied(state), before, parameter)
    optimizer.param_groups[:] = [group for group, _, _ in saved["groups"]]
    for group, parameters, options in saved["groups"]:
        group["params"][:] = parameters
        for key, option in options.items():
            if isinstance(option, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                # a learning rate that a compiled step reads: the same tensor must stay
                group[key].detach().copy_(option)
            else:
                group[key] = copied(option)


def is_adaptive(optimizer: torch.optim.Optimizer) -> bool:
    """It divides each gradient by its usual size."""
    return bool(_ADAPTIVE & optimizer.defaults.keys())


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What the tensors of its state take."""
    return sum(map(_bytes, optimizer.state.values()))


def given_rates(optimizer: torch.optim.Optimizer, *, alike: bool = False) -> list[float | None]:
    """The rates that each of its groups was given: a scheduler notes them. Without one, that of a
    single group, or of groups that had the same rate in every step (`alike`), where it is not the
    default of the optimizer's class."""
    default = inspect.signature(type(optimizer)).parameters.get("lr")
    written = optimizer.defaults.get("lr")
    if default is not None and written == default.default:
        written = None
    alone = len(optimizer.param_groups) == 1 or alike
    rates = [
        group.get("initial_lr", written if alone else None) for group in optimizer.param_groups
    ]
    return [float(rate) if isinstance(rate, (int, float)) else None for rate in rates]


def rate_of(group: dict[str, Any]) -> float | None:
    """A group's learning rate; None where it has none, or finds it by itself (Adafactor)."""
    rate = group.get("lr")
    return float(rate) if isinstance(rate, (int, float, torch.Tensor)) else None


@contextlib.contextmanager
def scaled_rates(
    factor: float,
    highest: float | None = None,
    used: Mapping[int, Sequence[float | None]] | None = None,
) -> Iterator[None]:
    """Every learning rate times `factor`, and none above `highest`, while an optimizer steps, and
    as it was behind it. `used`: what the groups of an optimizer (by identity) had when it stepped
    in the run, where the loop sets that by itself. An optimizer that steps another inside of its
    own step may share its groups."""
    scaled: dict[int, tuple[dict[str, Any], Any, int]] = {}  # group: itself, its rate, who did it

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        known = (used or {}).get(id(optimizer), ())
        for number, group in enumerate(optimizer.param_groups):
            rate = group.get("lr")
            if id(group) in scaled or not isinstance(rate, (int, float, torch.Tensor)):
                continue
            scaled[id(group)] = group, copied(rate), id(optimizer)
            own = known[number] if number < len(known) else None
            given = (rate if own is None else own) * factor
            _set_rate(group, given if highest is None else min(given, highest))

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for key, (group, rate, by) in list(scaled.items()):
            if by == id(optimizer):
                _set_rate(group, rate)
                del scaled[key]

    try:
        with listening((BEFORE_STEP, before), (AFTER_STEP, after)):
            yield
    finally:
        for group, rate, _ in scaled.values():  # a step that raised
            _set_rate(group, rate)


def _set_rate(group: dict[str, Any], rate: Any) -> None:
    if isinstance(group["lr"], torch.Tensor):
        # a compiled step reads it: the same tensor must stay
        group["lr"].detach().copy_(torch.as_tensor(rate))
    else:
        group["lr"] = rate


def copy_tensor(tensor: torch.Tensor, host: bool) -> torch.Tensor:
    return tensor.to("cpu", copy=True) if host else tensor.clone()


def copied(value: Any, host: bool = False) -> Any:
    """A copy of an optimizer's state or of one entry of it: L-BFGS keeps lists of tensors."""
    if isinstance(value, torch.Tensor):
        return copy_tensor(value, host)
    if type(value) in (list, tuple):
        return type(value)(copied(item, host) for item in value)
    if isinstance(value, dict):
        return {key: copied(item, host) for key, item in value.items()}
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if type(value) in (list, tuple) else 0


def _there(value: Any, before: Any, parameter: Any) -> Any:
    """A copy from host memory on the device where the optimizer keeps this entry: its counters may
    stay on the host."""
    if not isinstance(value, torch.Tensor):
        return value
    known = before.device if isinstance(before, torch.Tensor) else None
    if known is None:
        known = (
            value.device
            if value.dim() == 0 or not isinstance(parameter, torch.Tensor)
            else parameter.device
        )
    return value.to(known)


# State that torch.optim keeps in the shape of its parameter.
_ALIKE = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
    "exp_inf",
    "sum",
    "prev",
    "ax",
)


def odd_state(recipe: Recipe) -> StateFacts | None:
    """State whose shape is not its parameter's; None where all is alike."""
    names = {id(p): name for name, p in recipe.model.named_parameters()}
    for number, optimizer in enumerate(recipe.optimizers):
        with_state = {
            p: state
            for p, state in optimizer.state.items()
            if isinstance(p, torch.Tensor) and isinstance(state, dict) and state
        }
        found = [
            (names.get(id(p), "a parameter"), key, tuple(value.shape), tuple(p.shape))
            for p, state in with_state.items()
            for key, value in state.items()
            if key in _ALIKE and isinstance(value, torch.Tensor) and value.shape != p.shape
        ]
        if found:
            name, key, shape, wanted = found[0]
            return StateFacts(
                parameter=name,
                key=key,
                shape=shape,
                wanted=wanted,
                optimizer=number,
                odd=len({group[0] for group in found}),
                count=len(with_state),
            )
    return None
