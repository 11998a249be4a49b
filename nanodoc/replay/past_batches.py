"""The last steps with their batches, as many as the limits on memory allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from nanodoc.replay.past_step import Held, KnownMemory, PastStep, held
from nanodoc.tensors.nested import holds_only_tensors, other_leaves, tensor_leaves, tensors_in

MOST_STEPS = 512
_MOST_BYTES = 1 << 29
_MOST_DEVICE_BYTES = 1 << 26  # of batches that live on a device: its memory is the user's
_MOST_SHARED = 64  # tensors of loader workers: each holds a file descriptor open
_ALWAYS = 2  # the last one, and the one before it, may be asked for whatever they hold
_ADDED = 4  # steps that tell what the next one will add
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class PastBatches:
    """`budget` gives the bytes of host memory that batches may take."""

    def __init__(self, budget: Callable[[], float]) -> None:
        self._budget = budget
        self.steps: deque[PastStep] = deque()
        """The oldest first, without gaps."""
        self._holders: dict[int, int] = {}
        self._opaque = False
        # host bytes, bytes on a device, tensors shared with a loader's workers
        self._held = [0, 0, 0]
        self._added: deque[tuple[int, ...]] = deque(maxlen=_ADDED)

    @property
    def host_bytes(self) -> int:
        """Host memory that the batches keep alive."""
        return self._held[0]

    def add(self, step: PastStep, known: KnownMemory) -> None:
        """`step` begins; the oldest ones go where it takes more than the limits allow."""
        before = tuple(self._held)
        self._weigh_drawn()
        leaves = tensors_in(step.batches)
        step.samples = known.samples(leaves)
        step.held = known.held(leaves)
        if not all(map(holds_only_tensors, step.batches)):
            step.held += self._held_by_others(step.batches)
        self.steps.append(step)
        self._weigh(step, 1)
        self._added.append(tuple(now - then for now, then in zip(self._held, before, strict=True)))
        limits = self._limits()
        while len(self.steps) > _ALWAYS and (
            self._opaque
            or len(self.steps) > MOST_STEPS
            or any(now > most for now, most in zip(self._held, limits, strict=True))
        ):
            self._weigh(self.steps.popleft(), -1)

    def drop_last(self, step: int) -> None:
        """The last one, if it has this number, was none."""
        if self.steps and self.steps[-1].step == step:
            self._weigh(self.steps.pop(), -1)

    def clear(self) -> None:
        """Forgets all of them."""
        while self.steps:
            self._weigh(self.steps.pop(), -1)

    def fitting(self) -> int:
        """How many steps the limits allow, where each further one adds what the last ones added."""
        if self._opaque:
            return _ALWAYS
        there, most = len(self.steps), MOST_STEPS
        for number, limit in enumerate(self._limits()):
            left = limit - self._held[number]
            # of one step it may not be known yet what it draws, and the next one holds it, too
            added = max((one[number] for one in self._added), default=0)
            if left < 0:
                return _ALWAYS
            if added:
                most = min(most, there + int(left / added))
        return most

    def make_room(self, more: int) -> None:
        """Drops the oldest, so that so many more fit."""
        most = self.fitting()
        if most < MOST_STEPS:  # else the memory is not what counts
            while len(self.steps) > max(most - more, _ALWAYS):
                self._weigh(self.steps.popleft(), -1)

    def _limits(self) -> tuple[float, float, float]:
        return min(_MOST_BYTES, self._budget()), _MOST_DEVICE_BYTES, _MOST_SHARED

    def _held_by_others(self, batches: list[Any]) -> Iterator[Held]:
        """Arrays of NumPy among what is no tensor."""
        for other in other_leaves(batches):
            if type(other).__module__ == "numpy":
                base = getattr(other, "base", None)
                whole = other if base is None else base
                yield id(whole), int(getattr(whole, "nbytes", 0)), 0, False
            elif not isinstance(other, _PLAIN):
                self._opaque = True  # how much memory it holds can't be told

    def _weigh_drawn(self) -> None:
        """The step before has drawn all that it draws."""
        last = self.steps[-1] if self.steps else None
        if last is None or not last.drawn or last.drawn_is_weighed:
            return
        leaves = [tensor for _, tensor in tensor_leaves([value for _, value, _ in last.drawn])]
        self._weigh(last, -1)
        last.held += map(held, leaves)
        last.drawn_is_weighed = True
        self._weigh(last, 1)

    def _weigh(self, step: PastStep, sign: int) -> None:
        """Host memory that several batches are views of, and what several share with a worker,
        count once."""
        holders, sums = self._holders, self._held
        for address, size, on_device, shared in step.held:
            before = holders.get(address, 0)
            now = before + sign
            if now:
                holders[address] = now
            else:
                del holders[address]
            if not (before and now):
                sums[0] += sign * size
                if shared:
                    sums[2] += sign
            if on_device:
                sums[1] += sign * on_device
