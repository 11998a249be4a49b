"""The trail a training leaves in shared memory: the step and phase it is in, the last losses, and
its last words. It is there when the process is not, whatever ended it. Writing costs a fraction of
a microsecond and no system call."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from nanodoc.errors import Phase
from nanodoc.facts.collectives import LastCollective, collectives_of

PHASES: tuple[Phase, ...] = get_args(Phase)
START: Phase = "start"
EXAMINATION: Phase = "examination"
_STEPS = 4096  # of which loss and gradient norm are kept: what a sparkline and its extremes need
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}
_FORWARD = _NUMBERS["forward"]
# The words at the head of the page: step or -1, number of the phase, steps finished, steps planned,
# other signs of life, the step of which is asked whether another rank has left it (plus one, or 0),
# and the one that another has left.
_STEP, _PHASE, _FINISHED, _PLANNED, _SIGNS, _ASKED, _LEFT = range(7)
_HEAD = 7 * 8  # bytes
_DEVICE = struct.Struct("<64s")
_PAIR = struct.Struct("<dd")
_PAIRS = _HEAD + _DEVICE.size
_WORDS = _PAIRS + _STEPS * _PAIR.size
_LENGTH = struct.Struct("<i")
_LONGEST = 32 * 1024
_COLLECTIVES = _WORDS + _LENGTH.size + _LONGEST
_LONGEST_COLLECTIVES = 32 * 1024
SIZE = _COLLECTIVES + _LENGTH.size + _LONGEST_COLLECTIVES


@dataclass(frozen=True, kw_only=True, slots=True)
class Trail:
    """What is known of a process from its crumbs. `step` is None before the first; `losses` and
    `grad_norms` are those of the last finished steps, `first` the number of the first of them."""

    step: int | None = None
    phase: Phase = "start"
    finished: int = 0
    planned: int = 0
    signs: int = 0
    """Signs of life besides steps and phases."""
    asked: int | None = None
    """The step that this rank stands in until it knows whether another rank has gone on."""
    device: str = ""
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    words: Mapping[str, Any] | None = None
    collectives: tuple[LastCollective, ...] | None = None
    """The last collectives that it entered, where it was asked and has answered."""


class TrailWriter:
    """The shared page, seen from either side."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SIZE)
        self._head = memoryview(self._page)[:_HEAD].cast("q")
        self._examining = False
        self._modules: Mapping[int, tuple[str, str]] = {}
        self.on_phase: Any = None
        """Called as `on_phase(step, phase)` where somebody looks closer (see `lines`)."""

    def at(self, step: int | None, phase: Phase) -> None:
        """The training is in this phase of this step; ignored while nanodoc itself runs steps
        again."""
        if self._examining:
            return
        self._head[_STEP] = -1 if step is None else step
        self._head[_PHASE] = _NUMBERS[phase]
        if self.on_phase is not None:
            self.on_phase(step, phase)

    def phase(self, phase: Phase) -> None:
        """The step is in its next phase."""
        if self._examining:
            return
        self._head[_PHASE] = _NUMBERS[phase]
        self._head[_SIGNS] += 1  # a micro-batch begins the phases anew
        if self.on_phase is not None:
            self.on_phase(None, phase)

    def plan(self, steps: int, device: str) -> None:
        """So many steps are to be run, on this device."""
        self._head[_PLANNED] = steps
        _DEVICE.pack_into(self._page, _HEAD, device.encode()[: _DEVICE.size])

    def sign(self) -> None:
        """Something goes on that is no step and no phase."""
        self._head[_SIGNS] += 1

    def ask(self, step: int | None) -> None:
        """Whether another rank has left this step behind: the parent, which sees where the others
        are, may come to know. None: it is over."""
        self._head[_ASKED] = 0 if step is None else step + 1

    def answer(self, step: int) -> None:
        """One has left this step behind, of which was asked."""
        self._head[_LEFT] = step + 1

    @property
    def answered(self) -> bool:
        return 0 < self._head[_ASKED] == self._head[_LEFT]

    def finished(self, step: int, loss: float, grad_norm: float) -> None:
        """A step is over."""
        _PAIR.pack_into(self._page, _PAIRS + step % _STEPS * _PAIR.size, loss, grad_norm)
        self._head[_FINISHED] = step + 1

    def next(self, step: int, loss: float, grad_norm: float) -> None:
        """The step before this one is over, with this loss and gradient norm, and this one has
        begun."""
        _PAIR.pack_into(self._page, _PAIRS + (step - 1) % _STEPS * _PAIR.size, loss, grad_norm)
        head = self._head
        head[_FINISHED] = step
        if not self._examining:
            head[_STEP], head[_PHASE] = step, _FORWARD
            if self.on_phase is not None:
                self.on_phase(step, "forward")

    def of_model(self, modules: Mapping[int, tuple[str, str]]) -> None:
        """(path, type) of the model's modules by their identity; they live as long as the run."""
        self._modules = modules

    def module_of(self, thing: Any) -> tuple[str, str] | None:
        """(path, type) where `thing` is one of the model's modules."""
        return self._modules.get(id(thing))

    def examining(self) -> None:
        """From now on nanodoc runs steps again: they are not the training's."""
        self.at(self.step, EXAMINATION)
        self._examining = True

    def going_on(self) -> None:
        """The training was not over: its own steps follow. What was said of those that were run
        again is forgotten."""
        self._examining = False
        _LENGTH.pack_into(self._page, _WORDS, 0)

    def say(self, words: Mapping[str, Any]) -> None:
        """Last words, for the time after: plain data, replaced by those said later."""
        self._put(_WORDS, words, _LONGEST)

    def entered(self, collectives: Sequence[LastCollective]) -> None:
        """The last collectives that this rank entered. They have a place of their own: a thread
        writes them while the process may write its last words."""
        rows = [asdict(one) for one in collectives]
        if not self._put(_COLLECTIVES, rows, _LONGEST_COLLECTIVES):
            bare = [{**row, "through": ()} for row in rows]
            self._put(_COLLECTIVES, bare, _LONGEST_COLLECTIVES)

    def forget_collectives(self) -> None:
        """They are asked for anew."""
        _LENGTH.pack_into(self._page, _COLLECTIVES, 0)

    def _put(self, place: int, content: object, longest: int) -> bool:
        """False where it is too long, and is left out."""
        text = json.dumps(content).encode()
        if len(text) > longest:
            return False
        start = place + _LENGTH.size
        _LENGTH.pack_into(self._page, place, 0)  # whoever reads meanwhile reads nothing
        self._page[start : start + len(text)] = text
        _LENGTH.pack_into(self._page, place, len(text))
        return True

    def _got(self, place: int, longest: int) -> Any:
        (length,) = _LENGTH.unpack_from(self._page, place)
        if 0 < length <= longest:
            start = place + _LENGTH.size
            with contextlib.suppress(ValueError):  # cut off in the middle of a word
                return json.loads(self._page[start : start + length])
        return None

    @property
    def step(self) -> int | None:
        step = self._head[_STEP]
        return step if step >= 0 else None

    def trail(self) -> Trail:
        """What has been written so far."""
        step, phase, finished, planned, signs, asked, _ = self._head
        kept = [
            _PAIR.unpack_from(self._page, _PAIRS + i % _STEPS * _PAIR.size)
            for i in range(max(0, finished - _STEPS), finished)
        ]
        entered = self._got(_COLLECTIVES, _LONGEST_COLLECTIVES)
        return Trail(
            step=step if step >= 0 else None,
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else "start",
            finished=finished,
            planned=planned,
            signs=signs,
            asked=asked - 1 if asked > 0 else None,
            device=_DEVICE.unpack_from(self._page, _HEAD)[0].rstrip(b"\0").decode(errors="replace"),
            losses=tuple(loss for loss, _ in kept),
            grad_norms=tuple(norm for _, norm in kept),
            words=self._got(_WORDS, _LONGEST),
            collectives=None if entered is None else collectives_of(entered),
        )

    def close(self) -> None:
        self._head.release()
        self._page.close()


class NoTrail(TrailWriter):
    """Where nobody would read them: the training runs in the process that reports."""

    def __init__(self) -> None:
        self._examining = True  # which no phase gets past
        self._modules = {}
        self.on_phase = None

    def plan(self, steps: int, device: str) -> None:
        return None

    def sign(self) -> None:
        return None

    def ask(self, step: int | None) -> None:
        return None

    @property
    def answered(self) -> bool:
        return False

    def finished(self, step: int, loss: float, grad_norm: float) -> None:
        return None

    def next(self, step: int, loss: float, grad_norm: float) -> None:
        return None

    def say(self, words: Mapping[str, Any]) -> None:
        return None

    def entered(self, collectives: Sequence[LastCollective]) -> None:
        return None

    def examining(self) -> None:
        return None

    def going_on(self) -> None:
        return None

    def trail(self) -> Trail:
        return Trail()


def shared_page() -> int:
    """The descriptor of a new page of zeros without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("nanodoc-crumbs")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, SIZE)
    return descriptor


current: TrailWriter = NoTrail()
"""What `here` gives, without the call; asked of this module each time."""


def here() -> TrailWriter:
    """This process's own crumbs."""
    return current


def leave(crumbs: TrailWriter) -> None:
    """This process leaves its crumbs on that page."""
    global current
    current = crumbs
