"""What an optimizer's step adds to half-precision weights, and what rounding leaves of it: the last
step once more, beside the same step on float32 copies."""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from nanodoc.errors import UsageError, UserCodeError
from nanodoc.facts.loop import RoundingFacts
from nanodoc.instrument.originals import ours
from nanodoc.instrument.taps import AFTER_STEP, BEFORE_STEP, listening
from nanodoc.measure.layers import HALF
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.optimizers import copied, rate_of, scaled_rates
from nanodoc.replay.sandbox import state_preserved, warnings_unsaid
from nanodoc.replay.step import StepRunner, run_step
from nanodoc.replay.step_state import StateKeeper, StepState
from nanodoc.tensors.plain import is_plain, without_values

_MOST = 1 << 24
"""Elements of the parameters that are looked at, together."""
_SURELY_ROUNDED = 0.2
"""Of a unit in the last place of the weight. Half a unit decides; below a power of two the units
are half as large, and an optimizer in half precision rounds on the way, too."""

_FEWEST = 5
"""Elements that stochastic rounding would move: of fewer, none may move by chance."""

_HALF_UNIT, _FEWEST_RESTS = 0.51, 64


def half_weights(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    """The half-precision parameters of an optimizer's groups."""
    held = [p for group in groups for p in group["params"] if isinstance(p, torch.Tensor)]
    return [p for p in held if p.dtype in HALF and p.requires_grad and not without_values(p)]


def rounded_updates(
    runner: StepRunner,
    keeper: StateKeeper,
    build: BuildFacts,
    last: StepState,
    rates: Sequence[float],
) -> RoundingFacts | None:
    """`rates` are those of all groups of all optimizers in a usual step: a schedule may have come
    to 0 by the end. None where the step can't be run again, where no optimizer steps in it, or
    where that can't be done in float32."""
    look, left = _Look(), iter(rates)
    used = {id(o): list(islice(left, len(o.param_groups))) for o in runner.recipe.optimizers}
    with (
        state_preserved(runner, keeper, moving=True),
        warnings_unsaid(),
        contextlib.suppress(UserCodeError, UsageError),
        scaled_rates(1.0, None, used),
        listening((BEFORE_STEP, look.before), (AFTER_STEP, look.after)),
    ):
        keeper.restore(last)
        run_step(runner, [runner.moved(batch) for batch in last.batches])
        if not runner.observing:
            runner.update()
    return look.facts({id(p): n for n, p in runner.recipe.model.named_parameters()}, build)


@dataclass(eq=False)
class _Weight:
    """One parameter before a step, and what the step makes of it in float32."""

    parameter: torch.Tensor
    was: torch.Tensor
    with_gradient: torch.Tensor
    wanted: torch.Tensor


class _Look:
    """Listens to the optimizers of one step."""

    def __init__(self) -> None:
        self._open: list[_Weight] = []
        self._rows: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
        self._left = _MOST
        self._keeps_rest = False

    @ours
    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """An optimizer is about to step."""
        if len(args) > 1 or kwargs:  # besides the optimizer itself: a closure, which moves it twice
            return
        chosen = []
        moving = [group for group in optimizer.param_groups if rate_of(group) != 0]
        for parameter in half_weights(moving):
            gradient = parameter.grad
            if gradient is None or not is_plain(parameter) or not is_plain(gradient):
                continue
            if parameter.numel() <= self._left:
                self._left -= parameter.numel()
                chosen.append(parameter)
        # an optimizer of any kind
        with contextlib.suppress(Exception):
            self._open = _in_float32(optimizer, chosen)

    @ours
    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """It has stepped."""
        self._rows += [(one.parameter, _compared(one)) for one in self._open]
        states = [optimizer.state.get(one.parameter) for one in self._open]
        self._keeps_rest |= any(map(_keeps_rest, self._open, states))
        self._open = []

    def facts(self, names: dict[int, str], build: BuildFacts) -> RoundingFacts | None:
        """Of the dtype with the most elements."""
        dtypes = {p.dtype for p, _ in self._rows}
        if not dtypes:
            return None
        sizes = {d: sum(p.numel() for p, _ in self._rows if p.dtype == d) for d in dtypes}
        dtype = max(dtypes, key=lambda d: sizes[d])
        rows = [(p, row) for p, row in self._rows if p.dtype == dtype]
        total = {key: sum(float(row[key]) for _, row in rows) for key in _COUNTS}
        if not total["elements"] or total["expected"] < _FEWEST:
            return None
        first = max(rows, key=lambda pair: float(pair[1]["kept"]))[0]
        name = names.get(id(first), "")
        made = (
            build.cast_at(name)
            or build.layer_made_at(name.rpartition(".")[0])
            or build.registered_at(name)
        )
        return RoundingFacts(
            dtype=str(dtype).removeprefix("torch."),
            elements=int(total["elements"]),
            kept=total["kept"] / total["elements"],
            moved=total["moved"] / max(total["kept"], 1.0),
            ratio=_median([row["ratios"] for _, row in rows]),
            drift=_median([row["drifts"] for _, row in rows]),
            compensated=1.0 if self._keeps_rest else total["leaked"] / total["expected"],
            parameter=name,
            made_at=made if name else None,
        )


_COUNTS = ("elements", "kept", "moved", "leaked", "expected")


def _in_float32(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> list[_Weight]:
    """The step of a copy of the optimizer, on float32 copies of all that it reads. The optimizer,
    its schedules and its hooks do not hear of it."""
    copies: dict[int, torch.nn.Parameter] = {}
    state: dict[Any, Any] = defaultdict(dict)
    for parameter in parameters:
        copy = copies[id(parameter)] = torch.nn.Parameter(parameter.detach().float().clone())
        assert parameter.grad is not None
        copy.grad = parameter.grad.detach().float().clone()
        if parameter in optimizer.state:
            state[copy] = _widened(copied(optimizer.state[parameter]))
    twin = object.__new__(type(optimizer))
    known = {key: value for key, value in vars(optimizer).items() if key != "step"}
    groups = [
        {**copied({k: v for k, v in group.items() if k != "params"}), "params": own}
        for group in optimizer.param_groups
        if (own := [copies[id(p)] for p in group["params"] if id(p) in copies])
    ]
    vars(twin).update(known, state=state, param_groups=groups)
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(twin)  # below the hooks
    return [
        _Weight(p, p.detach().clone(), p.grad.detach() != 0, copies[id(p)].detach())
        for p in parameters
        if p.grad is not None
    ]


def _widened(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.float() if state.dtype in HALF else state
    if isinstance(state, dict):
        return {key: _widened(value) for key, value in state.items()}
    return state


def _compared(one: _Weight) -> dict[str, torch.Tensor]:
    """Counts, and of the elements that stayed the update in units in the last place and relative to
    the weight."""
    now, was = one.parameter.detach(), one.was.float()
    update, unit = (one.wanted - was).abs(), _unit(one.was)
    same = now == one.was
    moves = one.with_gradient & (update > 0)
    small = moves & (update < _SURELY_ROUNDED * unit)
    kept = one.with_gradient & same
    stayed = kept & moves
    return {
        "elements": one.with_gradient.sum(),
        "kept": kept.sum(),
        "moved": stayed.sum(),
        "leaked": (small & ~same).sum(),
        "expected": (update / unit)[small].sum(),
        "ratios": _some((update / unit)[stayed]),
        "drifts": _some((update / was.abs())[stayed]),
    }


def _unit(weights: torch.Tensor) -> torch.Tensor:
    """A unit in the last place of each."""
    kind, wide = torch.finfo(weights.dtype), weights.float()
    _, exponent = torch.frexp(wide)
    unit = torch.ldexp(torch.full_like(wide, kind.eps), exponent - 1)
    return torch.where(wide == 0, kind.tiny, unit)


def _keeps_rest(one: _Weight, state: Any) -> bool:
    """The optimizer keeps what rounding takes from the weights, or the weights themselves in
    float32: what is kept is at most half a unit in the last place everywhere, and spread evenly."""
    weight = one.parameter.detach()
    unit, looked = _unit(weight), one.with_gradient & (weight != 0)
    held = state.values() if isinstance(state, dict) else ()
    for value in held:
        if not isinstance(value, torch.Tensor) or value.shape != weight.shape:
            continue
        for rest in (value.float(), value.float() - weight.float()):
            sizes = (rest.abs() / unit)[looked]
            if sizes.numel() < _FEWEST_RESTS:
                continue
            within = float((sizes <= _HALF_UNIT).float().mean())
            upper = float((sizes > _HALF_UNIT / 2).float().mean())
            if within > 0.99 and 0.2 < upper < 0.8:
                return True
    return False


def _some(values: torch.Tensor) -> torch.Tensor:
    return values[:: values.numel() // 4096 + 1]


def _median(parts: Sequence[torch.Tensor]) -> float:
    values = torch.cat([part.cpu() for part in parts])
    return float(values.median()) if values.numel() else 0.0
