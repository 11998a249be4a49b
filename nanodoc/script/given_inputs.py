"""What the networks of a script are given while they are trained, and what while they are only
asked (a validation, an agent that acts). Are they the same way round?

Calls are listened to in a few iterations, and for a while when the loop has been left.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.facts.asides import TurnedFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.measure.turned import FEWEST_POSITIONS, Profile, turned
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_MOST_NETWORKS = 64
_MOST_POSITIONS = 1 << 18  # of a sample
_MOST_VALUES = 1 << 20  # of a call
_MOST_CALLS = 24  # in one stretch behind the loop
_MOST_WINDOWS = 64  # of each kind
_MOST_WAITING = 32  # calls of an agent in one iteration
_MOST_TRAINED = 256  # calls in all
_APART = 1.1  # times the iterations before, those before the next one that is listened to


@dataclass(slots=True)
class _Given:
    """What one network was given at one place, in one of the two ways."""

    profile: Profile = field(default_factory=Profile)
    place: Place | None = None

    def add(self, rows: torch.Tensor, place: Place | None) -> None:
        self.profile.add(rows)
        self.place = self.place or place


@dataclass(slots=True)
class _Asked:
    """A call with gradients off inside an iteration, whose kind the iteration's other calls say."""

    key: tuple[str, int]
    size: int
    rows: torch.Tensor
    place: Place | None


class GivenInputs:
    """Told of iterations by `Outside`, and of the model by the session. `quiet`: a step is run
    again."""

    def __init__(self, quiet: Callable[[], bool]) -> None:
        self._quiet = quiet
        self._names: dict[int, tuple[str, weakref.ref[torch.nn.Module]]] = {}
        self._may_hook: Callable[[], bool] = lambda: False
        self._hook: Any = None
        self._inside = False
        self._iterations = self._next = self._windows = self._behind = self._calls = 0
        self._trained: dict[tuple[str, int], _Given] = {}
        self._aside: dict[tuple[str, int], _Given] = {}
        self._dims: dict[tuple[str, int], int] = {}
        self._waiting: list[_Asked] = []
        self._sizes: set[tuple[tuple[str, int], int]] = set()

    def of_model(self, model: torch.nn.Module, may_hook: Callable[[], bool]) -> None:
        """This is what is trained; `may_hook` says whether modules may have hooks now."""
        self.close()
        modules = [(name, module) for name, module in model.named_modules()][: 4 * _MOST_NETWORKS]
        outer = [(name, module) for name, module in modules if name.count(".") < 2]
        self._names = {id(m): (name, weakref.ref(m)) for name, m in outer[:_MOST_NETWORKS]}
        self._may_hook = may_hook
        self._iterations = self._next = self._windows = self._behind = 0
        self._dims = {}

    def begins(self) -> None:
        """An iteration of the training begins."""
        if self._hook is not None:
            self._end()
        self._iterations += 1
        if self._iterations < self._next or self._windows >= _MOST_WINDOWS:
            return
        self._next = int(_APART * self._iterations) + 1
        self._windows += 1
        self._open(inside=True)

    def left(self) -> None:
        """The loop of the training has been left, for now."""
        if self._hook is not None:
            self._end()
        if self._behind < _MOST_WINDOWS and self._trained:
            self._behind += 1
            self._open(inside=False)

    def close(self) -> None:
        """Takes the hook away."""
        if self._hook is not None:
            self._end()
        self._names, self._trained, self._aside = {}, {}, {}

    def _open(self, *, inside: bool) -> None:
        if not self._names or self._quiet() or not self._may_hook():
            return
        self._inside, self._calls, self._sizes = inside, 0, set()
        # one hook for all modules, in none of them: the script may copy or pickle its model
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._called)

    def _end(self) -> None:
        self._hook.remove()
        self._hook = None
        for asked in self._waiting:
            # an agent acts on other numbers of samples than it is trained on; a target for the same
            # samples belongs to the training
            if (asked.key, asked.size) not in self._sizes:
                self._aside.setdefault(asked.key, _Given()).add(asked.rows, asked.place)
        self._waiting = []

    @ours
    def _called(self, module: torch.nn.Module, args: Any) -> None:
        known = self._names.get(id(module))
        if known is None or known[1]() is not module or current_autograd_node() is not None:
            return
        if self._quiet():
            return
        self._calls += 1
        if self._calls > _MOST_CALLS and not self._inside:
            self._end()
            return
        learns = torch.is_grad_enabled()
        asks = not learns or not (self._inside or module.training)
        with contextlib.suppress(Exception), torch.no_grad(), DisableTorchFunction():
            for position, given in enumerate(args):
                if isinstance(given, torch.Tensor) and is_plain(given) and given.numel():
                    trained = self._inside and learns and module.training
                    self._note((known[0], position), given.detach(), trained=trained, asks=asks)

    def _note(
        self, key: tuple[str, int], given: torch.Tensor, *, trained: bool, asks: bool
    ) -> None:
        # where padding stands says nothing of ids
        if not given.is_floating_point() or given.itemsize == 1:
            return
        if trained and given.dim() > 1:
            self._dims.setdefault(key, given.dim())
        dims = self._dims.get(key)
        if dims is None or given.dim() not in (dims, dims - 1):
            return
        rows = given if given.dim() == dims else given[None]
        positions = rows[0].numel()
        if not len(rows) or not FEWEST_POSITIONS <= positions <= _MOST_POSITIONS:
            return
        known = self._trained.get(key)
        if trained and known is not None and known.profile.calls >= _MOST_TRAINED:
            return
        if self._inside and not trained and len(self._waiting) >= _MOST_WAITING:
            return
        size, rows = len(rows), rows[: max(1, _MOST_VALUES // positions)].float()
        own, caller = calling_places(3)
        place = caller or own
        if trained:
            self._sizes.add((key, size))
            self._trained.setdefault(key, _Given()).add(rows, place)
            self._only(key[0])
        elif asks and self._inside:
            self._waiting.append(_Asked(key, size, rows.clone(), place))
        elif asks:
            self._aside.setdefault(key, _Given()).add(rows, place)

    def _only(self, path: str) -> None:
        """What is inside of a network that is called is not looked at."""
        inside = f"{path}." if path else ""
        for identity, (name, _) in list(self._names.items()):
            if name != path and name.startswith(inside):
                del self._names[identity]

    @ours
    def facts(self) -> TurnedFacts | None:
        """The first network that was given its samples the other way round."""
        with contextlib.suppress(Exception), torch.no_grad(), DisableTorchFunction():
            for key, trained in self._trained.items():
                aside = self._aside.get(key)
                found = turned(trained.profile, aside.profile) if aside is not None else None
                if aside is not None and found is not None:
                    return TurnedFacts(
                        network=key[0],
                        shape=found.shape,
                        how=found.how,
                        apart=found.apart,
                        turned_apart=found.turned_apart,
                        chance=found.chance,
                        samples=(trained.profile.samples, aside.profile.samples),
                        trained_at=resolved(trained.place),
                        asked_at=resolved(aside.place),
                    )
        return None
