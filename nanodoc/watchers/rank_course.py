"""What a rank's gradients and weights are at some steps, as digests, so that the ranks' can be held
against each other when the run is over. Nothing is sent meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from nanodoc.facts.ranks import RankCourse, RankStep
from nanodoc.instrument.taps import (
    AFTER_STEP,
    BACKWARD,
    BEFORE_STEP,
    CLIP_BY_NORM,
    at,
    listening,
)
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.measure.gradients import Vitals
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.replay.local_collectives import (
    collectives_entered,
    held_alike,
    keeps_apart,
    several_ranks,
    syncs,
)
from nanodoc.replay.optimizers import rate_of
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.plain import is_plain, is_sharded, without_values
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch

_FIRST = 1
"""Step 0 may be run again without the other ranks."""
_APART = 1.4  # times the step of one entry is that of the next
_BLOCK = 1 << 14
"""Elements of a parameter that are digested, at another place in each step: with them, all digests
of a step take 5 ms for four million weights on one core."""
_STRIDE = 40_503  # from one place to the next: prime to most sizes
_MOST_STEPS = 24
_MOST_PARAMETERS = 512
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MODULUS = 1 << 32

_Digests = dict[str, torch.Tensor]


class RankCourseWatch(Watch):
    """Told of a run of one of several ranks. Shards are left out: each rank has its own."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizers: list[torch.optim.Optimizer],
        build: BuildFacts,
    ) -> None:
        super().__init__()
        self._model, self._optimizers, self._build = model, optimizers, build
        self._several = False
        self._named: dict[str, torch.nn.Parameter] = {}
        self._names: dict[int, str] = {}
        self._wrapped: set[str] = set()
        self._next = _FIRST
        self._due = False
        self._step = 0
        self._begin: _Digests = {}
        self._backward: _Digests = {}
        self._used: _Digests = {}
        self._stepped: _Digests = {}
        self._rates: tuple[float, ...] = ()
        self._entered: int | None = None
        self._in_step: int | None = None
        """Collectives: all before the step, and those between there and the optimizer's step."""
        self._through = False
        """The step has called a wrapper."""
        self._synced = True
        """The last backward pass was outside of no_sync()."""
        self._apart = False
        """An optimizer has stepped behind one that was inside."""
        self._rows: list[tuple[int, dict[str, Any], dict[str, _Digests]]] = []
        self._clipped: Place | None = None

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        self._several = True
        held = [(n, p) for n, p in self._model.named_parameters() if _may_be_alike(p)]
        self._named = dict(held[:_MOST_PARAMETERS])
        self._wrapped = held_alike(self._model)
        self._names = {id(p): name for name, p in self._named.items()}
        with listening(
            (BACKWARD, self._differentiating),
            (BEFORE_STEP, self._stepping),
            (AFTER_STEP, self._has_stepped),
            (CLIP_BY_NORM, self._clipping),
            (at(DistributedDataParallel, "forward"), self._forwarding),
        ):
            yield

    def before_step(self, start: StepState) -> float:
        self._due = self._several and start.step >= self._next and len(self._rows) < _MOST_STEPS
        if self._due:
            self._step = start.step
            self._backward, self._used, self._stepped = {}, {}, {}
            self._begin = self._digests(self._named)
            self._entered, self._through = collectives_entered(), False
        return 0.0

    def after_step(self, start: StepState, vitals: Vitals, seconds: float) -> None:
        if self._due and self._used:
            self._due, self._next = False, int(_APART * start.step) + 1
            parts = {
                "begin": self._begin,
                "backward": self._backward,
                "used": self._used,
                "stepped": self._stepped,
                "end": self._digests(self._named),
            }
            about = {"rates": self._rates, "collectives": self._in_step, "through": self._through}
            self._rows.append((start.step, about, parts))

    def _differentiating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            if self._due and current_autograd_node() is None:
                self._synced = syncs(self._model)
                self._backward = self._digests(_gradients(self._named))
            return found

        return backward

    def _forwarding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._through = True
            return original(*args, **kwargs)

        return forward

    def _clipping(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def clip(*args: Any, **kwargs: Any) -> Any:
            if self._due:
                own, caller = calling_places(2)
                self._clipped = caller or own
                # reduced by hand since the backward pass, they are to be the same from here on
                self._backward = self._digests(_gradients(self._named))
            return original(*args, **kwargs)

        return clip

    def _held_by(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.nn.Parameter]:
        held = [p for group in optimizer.param_groups for p in group["params"]]
        return {self._names[id(p)]: p for p in held if id(p) in self._names}

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._due:
            self._used |= self._digests(_gradients(self._held_by(optimizer)))
            self._apart = self._apart or not self._synced
            now, before = collectives_entered(), self._entered
            self._in_step = now - before if now is not None and before is not None else None
            rates = [rate_of(group) for o in self._optimizers for group in o.param_groups]
            self._rates = tuple(rate for rate in rates if rate is not None)

    def _has_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._due:
            self._stepped |= self._digests(self._held_by(optimizer))

    def _digests(self, named: Mapping[str, torch.Tensor]) -> _Digests:
        """A sum of the bits of each, which stays on its device."""
        found: _Digests = {}
        with torch.no_grad(), DisableTorchFunction(), contextlib.suppress(RuntimeError):
            for name, tensor in named.items():
                kind = _WHOLE.get(tensor.element_size())
                if kind is None or tensor.is_complex() or not tensor.numel():
                    continue
                values = tensor.detach().contiguous().view(-1)
                begin = self._step * _STRIDE % max(1, len(values) - _BLOCK)
                part = values[begin : begin + _BLOCK].view(kind)
                found[name] = part.sum(dtype=torch.int64)
        return found

    def facts(self) -> dict[str, Any]:
        if not self._rows:
            return {}
        names = tuple(self._named)
        steps = []
        for step, about, parts in self._rows:
            told: dict[str, Any] = {part: _numbers(names, found) for part, found in parts.items()}
            steps.append(RankStep(step=step, **about, **told))
        first = next(iter(names), None)
        return {
            "rank_course": RankCourse(
                names=names,
                steps=tuple(steps),
                wrapped=tuple(name in self._wrapped for name in names),
                kept_apart=self._apart or keeps_apart(self._model),
                cast_at=self._build.cast_at(first) if first is not None else None,
                clipped_at=resolved(self._clipped),
            )
        }


def _may_be_alike(parameter: torch.nn.Parameter) -> bool:
    plain = not is_sharded(parameter) and not without_values(parameter) and is_plain(parameter)
    flat = type(parameter).__name__ == "FlatParameter" or hasattr(parameter, "_fsdp_flattened")
    return parameter.requires_grad and plain and not flat and parameter.numel() > 0


def _gradients(named: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in named.items() if p.grad is not None and is_plain(p.grad)}


def _numbers(names: tuple[str, ...], digests: _Digests) -> tuple[int, ...]:
    """By parameter; 0 where there is none."""
    # zeros have a digest, too
    return tuple(1 + int(digests[name]) % _MODULUS if name in digests else 0 for name in names)
